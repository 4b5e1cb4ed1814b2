"""A plan in MaxDiffusion's keys, on its command line, in its device order; its configuration beside the plan."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import checks
import numpy as np
import plans
import pytest

from aoizora import Infeasible, InvalidRequest, Plan
from aoizora.cli import main
from aoizora.integrations import deployed, maxdiffusion

HERE = Path(__file__).parent


def stripped(candidate: dict[str, Any]) -> dict[str, Any]:
    """Without axes of size 1 in its rules, which divide nothing."""
    large = {axis["name"] for axis in candidate["mesh"] if axis["size"] > 1}
    return {**candidate, "rules": {k: [a for a in v if a in large] for k, v in candidate["rules"].items()}}


def test_the_keys_of_a_plan_read_back_are_its_candidate(recorded_plan: Plan) -> None:
    """Over all candidates of a slice, through the shell and the command line's text."""
    for candidate in plans.candidates("v5e:2x4")[::7]:
        plan = plans.plan_of(recorded_plan, candidate, "v5e:2x4")
        keys = deployed.read_keys(shlex.split(maxdiffusion.command_line(plan)))
        read = deployed.deployment(keys, 8)
        wanted = stripped(candidate)
        if not wanted["rules"]["sequence"]:
            wanted["attention"] = "gathered"
        assert read.candidate == wanted
        assert read.split_physical_axes
        assert read.notes == []


@pytest.mark.parametrize("devices", [1, 4, 8, 12, 16, 48, 49, 98, 256])
def test_the_batch_is_the_videos_whatever_the_devices(devices: int) -> None:
    for videos in (1, 2, 3, 7):
        assert int(devices * maxdiffusion.per_device_batch(videos, devices)) == videos


def test_a_plan_exports_as_one_line_with_flags_before_it(
    recorded_plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded_plan.data["compiler_options"] = {"xla_a": "1"}
    recorded_plan.save(tmp_path / "plan.json")
    assert main(["export", str(tmp_path / "plan.json"), "--to", "maxdiffusion"]) == 0
    flags, line, *notes = capsys.readouterr().out.splitlines()
    assert flags == "export LIBTPU_INIT_ARGS=--xla_a=1"
    assert line == maxdiffusion.command_line(recorded_plan)
    assert all(note.startswith("#") for note in notes)
    done = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == shlex.split(line)
    assert main(["export", str(tmp_path / "plan.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compiler_options"] == {"xla_a": "1"}
    assert found["keys"] == json.loads(json.dumps(maxdiffusion.settings(recorded_plan)))


def test_what_maxdiffusion_cannot_run_is_refused(recorded_plan: Plan) -> None:
    recorded_plan.data["attention"] = "spiral"
    with pytest.raises(InvalidRequest, match="no attention 'spiral'"):
        maxdiffusion.settings(recorded_plan)
    recorded_plan.data["attention"] = "gathered"
    with pytest.raises(InvalidRequest, match="lacks allow_split_physical_axes"):
        maxdiffusion.apply(recorded_plan, {"attention": "flash"}, 4)


# The device order


@pytest.fixture
def max_utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands in for its module of that name."""
    module = ModuleType("maxdiffusion.max_utils")
    module.create_device_mesh = lambda config, devices=None, logging=True: "its own"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "maxdiffusion.max_utils", module)
    return module


class Placed:
    """A strategy as far as its device order is concerned."""

    def __init__(self, order: list[int], sizes: tuple[int, ...] = (2, 1, 2, 1)) -> None:
        shape = dict(zip(maxdiffusion.MESH_AXES, sizes, strict=True))
        self.mesh = SimpleNamespace(devices=np.array(order).reshape(sizes), shape=shape)


def config_of(*sizes: int) -> Any:
    return SimpleNamespace(
        **{f"ici_{axis}_parallelism": n for axis, n in zip(maxdiffusion.MESH_AXES, sizes, strict=True)}
    )


def test_its_mesh_is_answered_with_the_plans_order_inside_and_its_own_after(max_utils: Any) -> None:
    original = max_utils.create_device_mesh
    config = config_of(2, 1, 2, 1)
    with maxdiffusion.device_order(Placed([0, 2, 1, 3])):
        answered = max_utils.create_device_mesh(config)
        assert (answered == np.array([0, 2, 1, 3]).reshape(2, 1, 2, 1)).all()
        assert (max_utils.create_device_mesh(config, devices=[3, 2, 1, 0]) == answered).all()
        assert max_utils.create_device_mesh(config, devices=[0, 1]) == "its own"
        with pytest.warns(RuntimeWarning, match="apply_strategy_to_config"):
            assert max_utils.create_device_mesh(config_of(1, 1, 4, 1)) == "its own"
        with pytest.raises(KeyError), maxdiffusion.device_order(Placed([3, 2, 1, 0])):
            raise KeyError
        assert (max_utils.create_device_mesh(config) == answered).all()
    assert max_utils.create_device_mesh is original


def test_calls_at_once_each_get_their_own_order(max_utils: Any) -> None:
    from aoizora.serving.strategy import current

    original = max_utils.create_device_mesh
    barrier, answers = threading.Barrier(2), {}

    def run(order: tuple[int, ...]) -> None:
        strategy = Placed(list(order))
        current.set(strategy)
        with maxdiffusion.device_order(strategy):
            barrier.wait(10)
            answers[order] = tuple(max_utils.create_device_mesh(config_of(2, 1, 2, 1)).flat)
            barrier.wait(10)

    orders = [(0, 1, 2, 3), (3, 2, 1, 0)]
    threads = [threading.Thread(target=run, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == {order: order for order in orders}
    assert max_utils.create_device_mesh is original


# What is run today


def test_the_stock_configuration_is_all_context() -> None:
    found = deployed.deployment(deployed.read_keys([]), 8)
    assert {axis["name"]: axis["size"] for axis in found.candidate["mesh"]} == {
        "data": 1, "fsdp": 1, "context": 8, "tensor": 1,
    }  # fmt: skip
    assert found.candidate["rules"] == {
        "batch": [], "sequence": ["context"], "embed": ["context"], "heads": [], "mlp": [],
    }  # fmt: skip
    assert (found.candidate["attention"], found.split_physical_axes, found.notes) == ("gathered", False, [])


def test_a_yml_of_ones_own_is_read_under_the_keys_given(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="pyyaml is not installed")
    (tmp_path / "mine.yml").write_text("ici_data_parallelism: 2\nattention: 'ulysses'\nheight: 480\n")
    found = deployed.deployment(deployed.read_keys(["ici_tensor_parallelism=2"], tmp_path / "mine.yml"), 8)
    assert [axis["size"] for axis in found.candidate["mesh"]] == [2, 1, 2, 2]
    assert found.candidate["attention"] == "ulysses"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["ici_data_parallelism=3"], "does not have the slice's 8 devices"),
        (["ici_data_parallelism=-1"], "one axis may be -1"),
        (["ici_data_parallelism=0"], "must be a whole number"),
        (["ici_data_parallelism=two"], "must be a whole number"),
        (["dcn_data_parallelism=2"], "one slice"),
        (["attention=tokamax_ring"], "no equal"),
        (["attention"], "not key=value"),
        (["flash_block_sizes=[1]"], "must be a dict"),
        (["foo=1"], "unknown key 'foo'; allowed as key=value"),
        (["ici_data_paralellism=2"], "did you mean 'ici_data_parallelism'"),
        (["per_devce_batch_size=1"], "did you mean 'per_device_batch_size'"),
    ],
)
def test_keys_that_cannot_be_priced_are_refused(keys: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        deployed.deployment(deployed.read_keys(keys), 8)


def test_what_is_priced_otherwise_is_noted() -> None:
    notes = deployed.deployment(deployed.read_keys(["ici_tensor_parallelism=2"]), 8).notes
    assert len(notes) == 1
    assert "again on every rank of tensor" in notes[0]
    found = deployed.deployment(deployed.read_keys(["attention_sharding_uniform=False"]), 8)
    assert found.candidate["attention"] == "ulysses"
    assert "over heads on context" in found.notes[0]


def test_check_finds_what_the_plan_says_of_todays_deployments(
    recorded_plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner priced the same deployment from the recorded program, this compiles it anew, once."""
    pytest.importorskip("libtpu", reason="libtpu is not installed")
    found = deployed.check(recorded_plan, deployed.read_keys(["ici_data_parallelism=2"]))
    monkeypatch.setattr(deployed, "check", lambda *_: found)
    recorded_plan.save(tmp_path / "plan.json")
    expected = next(c for c in recorded_plan.data["comparisons"] if c["name"].startswith("data 2 x context 2"))
    assert main(["check", str(tmp_path / "plan.json"), "ici_data_parallelism=2"]) == 0
    today, plan, summary, *_ = capsys.readouterr().out.splitlines()
    assert float(today.split()[1]) == pytest.approx(expected["passes_step_seconds"] * 1e3, rel=0.02)
    assert float(plan.split()[1]) == pytest.approx(recorded_plan.data["best"]["passes_step_seconds"] * 1e3, abs=0.01)
    assert "s a video of 50 steps" in summary
    assert main(["check", str(tmp_path / "plan.json"), "ici_data_parallelism=2", "--json"]) == 0
    assert f"{json.loads(capsys.readouterr().out)['step_seconds'] * 1e3:.2f}" == today.split()[1]


def test_a_mesh_that_jax_cannot_lay_is_infeasible_at_once(recorded_plan: Plan) -> None:
    """2 x 8 over 4 x 4 without splitting physical axes: what their program would raise."""
    big = plans.plan_of(recorded_plan, plans.candidates("v5e:4x4")[0], "v5e:4x4")
    with pytest.raises(Infeasible, match="allow_split_physical_axes"):
        deployed.check(big, deployed.read_keys(["ici_data_parallelism=2"]))


# MaxDiffusion itself

CHECKS = checks.names(HERE / "maxdiffusion_checks.py")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, recorded_text: str) -> dict[str, str]:
    if not maxdiffusion.is_importable():
        pytest.skip("maxdiffusion is not importable: put a checkout of its src on PYTHONPATH")
    folder = tmp_path_factory.mktemp("maxdiffusion")
    paths = []
    for kind in ("gathered", "ulysses"):
        paths.append(folder / f"{kind}.json")
        plans.plan_of(Plan.loads(recorded_text), plans.varied("v5e:4x4", kind), "v5e:4x4").save(paths[-1])
    environment = {k: v for k, v in os.environ.items() if k != "LIBTPU_INIT_ARGS"} | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=16",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "maxdiffusion_checks.py"), *map(str, paths)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return checks.outcomes(done.stdout)


@pytest.mark.parametrize("name", CHECKS)
def test_against_maxdiffusion(outcomes: dict[str, str], name: str) -> None:
    assert not outcomes[name], outcomes[name]


# Its transformer as the planner's source


def test_another_source_must_be_importable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(maxdiffusion, "is_importable", lambda: False)
    command = ["plan", "--no-cache", "--out", str(tmp_path / "plan.json"), "--source"]
    assert main([*command, "maxdiffusion"]) == 2
    assert "on PYTHONPATH" in capsys.readouterr().err
    assert main([*command, "maxdifusion"]) == 2
    assert "allowed are aoizora and maxdiffusion" in capsys.readouterr().err


def test_its_code_is_in_the_key_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "maxdiffusion"
    package.mkdir()
    for name in ("__init__.py", "pyconfig.py"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "maxdiffusion", raising=False)
    before = maxdiffusion.source_digest()
    assert before == maxdiffusion.source_digest()
    (package / "pyconfig.py").write_text("# changed")
    assert maxdiffusion.source_digest() != before


@pytest.mark.slow
def test_workers_trace_its_transformer_under_a_candidate(exchanging_plan: Plan) -> None:
    """Stage 1 of a plan with --source maxdiffusion, by the same predictor: what its attention moves is there."""
    if not maxdiffusion.is_importable():
        pytest.skip("maxdiffusion is not importable: put a checkout of its src on PYTHONPATH")
    pytest.importorskip("libtpu", reason="libtpu is not installed")
    from aoizora import _core
    from aoizora.compiler.queue import WorkerQueue

    request = exchanging_plan.request
    devices = _core.slice_devices("v5e:2x2")
    with WorkerQueue(request, "v5e:2x2", devices, 1, builder=maxdiffusion.SOURCE_BUILDER) as queue:
        job = {"id": 1, "candidate": exchanging_plan.candidate, "rung": "propagate", "layers": 3}
        queue.submit(json.dumps(job))
        answer = queue.next()
    assert answer["outcome"] == "ok", answer["failure"]
    workload, candidate = _core.make_workload(json.dumps(request)), json.dumps(exchanging_plan.candidate)
    layers = exchanging_plan.data["layers"]
    theirs = json.loads(_core.predict(answer["text"], workload, candidate, "v5e:2x2", layers))
    ours = exchanging_plan.data["best"]["stage_1"]["block_bytes"]
    assert theirs["proxy_layers"] == 3
    found = theirs["q1"]["block_bytes"]
    assert found["all-gather"] == pytest.approx(ours["all-gather"], rel=0.05)
    # Six exchanges where ours has four: cross attention too.
    assert found["all-to-all"] == pytest.approx(ours["all-to-all"] * 6 / 4, rel=0.05)


@pytest.mark.slow
def test_its_own_transformer_has_the_collectives_the_plan_predicts(exchanging_plan: Plan, tmp_path: Path) -> None:
    """Compiled for the TPU under the plan's mesh and rules. Where AoiZora pads the sequence to the kernel's block it
    does not, and its Ulysses moves cross attention too: queries and result, and the short text."""
    if not maxdiffusion.is_importable():
        pytest.skip("maxdiffusion is not importable: put a checkout of its src on PYTHONPATH")
    pytest.importorskip("libtpu", reason="libtpu is not installed")
    from aoizora import _core

    exchanging_plan.save(tmp_path / "plan.json")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    command = [str(HERE / "maxdiffusion_model.py"), str(tmp_path / "plan.json"), str(tmp_path / "out.txt")]
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    places = {tuple(at): number for number, (at, _) in enumerate(_core.slice_devices("v5e:2x2"))}
    order = [places[tuple(at)] for at in exchanging_plan.data["best"]["placement"]["coordinates"]]
    text = (tmp_path / "out.txt").read_text()
    score = json.loads(_core.score(text, "", "", "v5e:2x2", order, exchanging_plan.data["layers"], "passes"))

    def large(collectives: list[dict[str, Any]]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for each in collectives:
            if each["bytes"] > 1 << 20:
                found.setdefault(each["kind"], []).extend([each["bytes"]] * round(each["runs"]))
        return found

    planned = large(exchanging_plan.data["best"]["predicted"]["block"]["collectives"])
    theirs = large(score["collectives"])
    assert exchanging_plan.data["attention"] == "ulysses"
    assert theirs.keys() == planned.keys() == {"all-gather", "all-to-all"}
    assert theirs["all-gather"] == pytest.approx(planned["all-gather"])
    assert (len(planned["all-to-all"]), len(theirs["all-to-all"])) == (4, 6)
    assert theirs["all-to-all"] == pytest.approx([planned["all-to-all"][0]] * 6, rel=0.05)
