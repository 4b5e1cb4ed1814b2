"""Listing 1: the configuration, the decorator and what a call runs under."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checks
import pytest

import aoizora
from aoizora import CompilerFailed, Infeasible, Interrupted, InvalidRequest, Plan, cache
from aoizora.serving import devices, request, resolve, strategy

HERE = Path(__file__).parent


def environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"} | changes


def python(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=environment(**changes), capture_output=True, text=True, check=False
    )


# The configuration


def test_the_slice_is_v5e_in_its_standard_shape_where_no_tpu_is(capsys: pytest.CaptureFixture[str]) -> None:
    request._told.clear()
    config = aoizora.build_config(model_name="wan2.1", shape=(480, 832, 21), chips=16, cfg=True)
    assert config.request == request.Request("wan2.1-14b", 480, 832, 21, "v5e:4x4")
    aoizora.build_config(chips=16)
    assert capsys.readouterr().err == "aoizora: no TPU is here: planning for v5e:4x4; slice= names another\n"
    assert config.plan is None


def test_every_standard_shape_is_a_slice_of_that_many_chips() -> None:
    for chips, shape in request.STANDARD_SHAPES.items():
        assert request.choose_slice(chips, None) == f"v5e:{shape}"
        assert request.choose_slice(chips, f"v5e:{shape}") == f"v5e:{shape}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model_name": "wan2.1-15b"}, "did you mean 'wan2.1-14b'"),
        ({"shpe": (480, 832, 21)}, "did you mean 'shape'"),
        ({"attentoin": "flash"}, "unknown argument 'attentoin'"),
        ({"shape": (480, 832)}, r"\(height, width, frames\)"),
        ({"shape": "480x832x21"}, r"\(height, width, frames\)"),
        ({"shape": (481, 832, 21)}, "nearest 480"),
        ({"chips": 12}, "no v5e slice of 12 chips; allowed: 1, 4, 8, 16"),
        ({"chips": 0}, "chips is 0"),
        ({"chips": True}, "chips is True"),
        ({"chips": None}, "no TPU is here: give chips=16"),
        ({"chips": 8, "slice": "v5e:4x4"}, "the slice v5e:4x4 has 16"),
        ({"slice": "v5f:3x4", "chips": None}, "v5f"),
        ({"settings": {"finalist": 1}}, "finalist"),
        ({"dtype": "bf61"}, "bf61"),
        ({"config_file": "mine.yml"}, "not importable here"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        aoizora.build_config(**{"chips": 16, **arguments})


def tpus(shape: tuple[int, ...], kind: str = "TPU v5 lite", skip: int = 0) -> list[SimpleNamespace]:
    places = [(x, y, z) for x in range(shape[0]) for y in range(shape[1]) for z in range(shape[2])]
    return [SimpleNamespace(coords=at, core_on_chip=0, device_kind=kind, platform="tpu") for at in places[skip:]]


def test_the_devices_that_are_here_name_their_slice() -> None:
    assert devices.slice_of(tpus((2, 4, 1))) == "v5e:2x4"
    assert devices.slice_of(tpus((1, 1, 1))) == "v5e:1x1"
    assert devices.slice_of(list(reversed(tpus((4, 4, 1))))) == "v5e:4x4"
    with pytest.raises(InvalidRequest, match="do not fill a rectangle of 4x4"):
        devices.slice_of(tpus((4, 4, 1), skip=1))
    with pytest.raises(InvalidRequest, match="TPU v9"):
        devices.slice_of(tpus((2, 2, 1), "TPU v9"))


def test_devices_present_decide_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "present_slice", lambda: "v5e:2x4")
    assert aoizora.build_config().request.slice == "v5e:2x4"
    assert aoizora.build_config(chips=8).request.slice == "v5e:2x4"
    assert aoizora.build_config(slice="v5e:4x4").request.slice == "v5e:4x4"
    with pytest.raises(InvalidRequest, match="this process sees v5e:2x4, 8 chips"):
        aoizora.build_config(chips=16)


def test_libtpus_devices_name_their_slice() -> None:
    pytest.importorskip("libtpu")
    from jax.experimental import topologies

    for name in ("v5e:1x1", "v5e:2x2", "v5e:2x4", "v5e:4x2", "v5e:4x4", "v5e:4x8"):
        assert devices.slice_of(topologies.get_topology_desc(platform="tpu", topology_name=name).devices) == name


# Finding the plan


def test_offline_never_plans_and_names_the_command_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOIZORA_OFFLINE", "1")
    monkeypatch.setattr(resolve, "_plan_in_fresh_process", lambda *_: pytest.fail("planned at serving time"))
    asked = aoizora.build_config("wan2.1-1.3b", chips=4, cfg=False, videos=2, steps=8).request
    with pytest.raises(InvalidRequest) as caught:
        resolve.plan_for(asked)
    said = str(caught.value)
    assert "aoizora plan --model wan2.1-1.3b --size 480x832 --frames 21 --slice v5e:2x2" in said
    assert "--videos 2 --no-cfg --steps 8" in said
    assert str(cache.folder()) in said


def test_offline_serves_what_is_cached_in_the_folder_named(
    recorded_plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AOIZORA_OFFLINE", "1")
    monkeypatch.setenv("AOIZORA_CACHE_DIR", str(tmp_path / "mine"))
    asked = aoizora.build_config("wan2.1-1.3b", chips=4).request
    cache.store(resolve._key(asked), recorded_plan)
    assert list((tmp_path / "mine").glob("*.json"))
    assert resolve.plan_for(asked).data == recorded_plan.data


def test_another_number_of_steps_is_served_by_the_same_plan(
    recorded_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOIZORA_OFFLINE", "1")
    cache.make_folder()
    cache.store(resolve._key(aoizora.build_config("wan2.1-1.3b", chips=4).request), recorded_plan)
    for steps in (50, 4):
        asked = aoizora.build_config("wan2.1-1.3b", chips=4, steps=steps).request
        assert resolve.plan_for(asked).data == recorded_plan.data
    with pytest.raises(InvalidRequest, match="AOIZORA_OFFLINE"):
        resolve.plan_for(aoizora.build_config("wan2.1-1.3b", chips=4, cfg=False).request)


def test_exported_flags_do_not_make_it_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may need flags; who exports them must find the same plan again, and so must who planned by command."""
    asked = aoizora.build_config("wan2.1-1.3b", chips=4).request
    for variable in cache.COMPILER_ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    described = [json.loads(text) for text in (
        aoizora._core.request_json(json.dumps(asked.planned())), aoizora._core.slice_json(asked.slice),
        aoizora._core.settings_json("{}"),
    )]  # fmt: skip
    plain = resolve._key(asked)
    assert plain == cache.key_of(*described)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_something=1")
    assert resolve._key(asked) == plain
    assert cache.key_of(*described) != plain


def test_planning_has_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIBTPU_INIT_ARGS", "TPU_WORKER_ID", "XLA_FLAGS", "JAX_PLATFORMS", "MEGASCALE_NUM_SLICES"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("AOIZORA_CACHE_DIR", "/somewhere")
    clean = resolve.clean_environment()
    assert not [name for name in clean if name.startswith(("LIBTPU_", "TPU_", "XLA_", "JAX_", "MEGASCALE_"))]
    assert clean["AOIZORA_CACHE_DIR"] == "/somewhere"


def test_planning_happens_in_another_process_and_its_errors_come_back() -> None:
    """14 GB of weights on one chip: the planner itself says so, from its own process."""
    asked = aoizora.build_config("wan2.1-14b", slice="v5e:1x1").request
    with pytest.raises(Infeasible, match=r"HBM|fit"):
        resolve.plan_for(asked)


def test_whoever_stops_the_progress_stops_the_planning_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def kept(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", kept)
    asked = aoizora.build_config("wan2.1-1.3b", chips=1).request
    with pytest.raises(Interrupted):
        resolve.plan_for(asked, lambda *_: False)
    assert len(started) == 1
    assert started[0].poll() is not None


def test_a_planning_process_that_dies_is_an_error_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve.sys, "executable", "/bin/false")
    with pytest.raises(CompilerFailed, match="ended with status 1 and no plan"):
        resolve.plan_for(aoizora.build_config("wan2.1-1.3b", chips=1).request)


def test_flags_are_active_only_with_the_same_value() -> None:
    options = {"xla_a": "1", "xla_b": "two"}
    assert strategy.inactive_flags(options, {}) == options
    assert strategy.inactive_flags(options, {"LIBTPU_INIT_ARGS": "--xla_a=1 --xla_b=2"}) == {"xla_b": "two"}
    assert strategy.inactive_flags(options, {"LIBTPU_INIT_ARGS": "--xla_a=1", "XLA_FLAGS": "--xla_b=two"}) == {}
    assert strategy.flags_line({}) == ""
    assert strategy.flags_line(options) == "export LIBTPU_INIT_ARGS='--xla_a=1 --xla_b=two'"


def test_an_async_generator_is_refused() -> None:
    async def frames(config: Any) -> Any:
        yield 1

    with pytest.raises(InvalidRequest, match="frames"):
        aoizora.auto_shard()(frames)


# Light


def test_to_import_aoizora_imports_neither_jax_nor_numpy() -> None:
    done = python("-c", "import aoizora, sys; print([m for m in ('jax', 'numpy', 'subprocess') if m in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


# Inside a process with four CPU devices

CHECKS = checks.names(HERE / "serving_checks.py")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, recorded_text: str) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("serving")
    (folder / "plan.json").write_text(recorded_text)
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    flags += " --xla_llvm_disable_expensive_passes=true"
    done = python(
        str(HERE / "serving_checks.py"),
        str(folder / "plan.json"),
        XLA_FLAGS=flags,
        XDG_CACHE_HOME=str(folder / "cache"),
    )
    assert done.returncode == 0, done.stderr
    return checks.outcomes(done.stdout)


@pytest.mark.parametrize("name", CHECKS)
def test_inside_a_serving_process(outcomes: dict[str, str], name: str) -> None:
    assert not outcomes[name], outcomes[name]


def test_listing_1_as_printed_with_a_stand_in_for_the_generation(recorded_plan: Plan, tmp_path: Path) -> None:
    """The text of the paper's Listing 1; only the model and the slice are those the recorded plan is for."""
    package = tmp_path / "maxdiffusion"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "generate_wan.py").write_text("def run(config):\n    print(dict(config.strategy.mesh.shape))\n")
    listing = (HERE.parents[1] / "examples" / "serve" / "listing_1.py").read_text()
    listing = listing.replace('"wan2.1"', '"wan2.1-1.3b"').replace("chips=16", "chips=4")
    (tmp_path / "listing.py").write_text(listing)
    cache.store(resolve._key(aoizora.build_config("wan2.1-1.3b", chips=4).request), recorded_plan)
    done = python(
        str(tmp_path / "listing.py"), XLA_FLAGS="--xla_force_host_platform_device_count=4", AOIZORA_OFFLINE="1"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{recorded_plan.mesh_shape}\n"


def test_hosts_share_the_plan_of_the_first(recorded_plan: Plan, tmp_path: Path) -> None:
    """Two processes, two devices each: only process 0 looks for the plan, and both run on the mesh of all four."""
    recorded_plan.save(tmp_path / "plan.json")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / "hosts_checks.py"), address, "2", str(index), str(tmp_path / "plan.json")],
            env=environment(
                XLA_FLAGS="--xla_force_host_platform_device_count=2",
                XDG_CACHE_HOME=str(tmp_path / f"cache{index}"),
                AOIZORA_OFFLINE="1",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        ends = time.monotonic() + 120
        outputs = [process.communicate(timeout=max(1, ends - time.monotonic())) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], outputs
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert "AOIZORA_OFFLINE" in first["missing"]
    assert "process 0 found no plan" in second["missing"]
    assert (first["asked"], second["asked"]) == (1, 0)
    assert first["digest"] == second["digest"]
    assert first["total"] == second["total"] == 6
    assert first["file"] == second["file"] == "True"
    assert first["damaged"] == str(recorded_plan.data["layers"])
    assert second["damaged"].startswith("CompilerFailed: the plan of process 0 came damaged")


@pytest.mark.slow
def test_a_first_call_plans_and_the_next_process_finds_the_plan(tmp_path: Path) -> None:
    pytest.importorskip("libtpu")
    program = (
        "import jax, aoizora; jax.devices()\n"
        "run = aoizora.auto_shard()(lambda config: print(aoizora.active_strategy().plan.data['best']['sharding']))\n"
        "run(aoizora.build_config('wan2.1-1.3b', (64, 64, 1), chips=1, settings={'finalists': 1}))\n"
    )
    place = {"AOIZORA_CACHE_DIR": str(tmp_path), "LIBTPU_INIT_ARGS": "--xla_no_such_flag=1"}
    first = python("-c", program, **place)
    assert first.returncode == 0, first.stderr
    assert "code generation" in first.stderr
    again = python("-c", program, AOIZORA_OFFLINE="1", **place)
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
