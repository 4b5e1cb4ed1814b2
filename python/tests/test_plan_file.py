"""A plan replayed from recorded answers of the real compiler: its file, its mesh, its report."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from aoizora import Infeasible, InvalidRequest, ParseError, Plan, _core
from aoizora.report import terminal


def device(x: int, y: int, z: int = 0, core: int = 0, kind: str = "TPU v5 lite") -> SimpleNamespace:
    return SimpleNamespace(coords=(x, y, z), core_on_chip=core, device_kind=kind, id=x + 2 * y, platform="tpu")


def four() -> list[SimpleNamespace]:
    return [device(1, 1), device(0, 0), device(0, 1), device(1, 0)]


def test_a_saved_plan_loads_as_it_was(recorded_plan: Plan, tmp_path: Path) -> None:
    recorded_plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").data == recorded_plan.data
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_replay_gives_the_same_plan_in_any_order_of_answers(recording: Path, recorded_plan: Plan) -> None:
    other = replay(recording, seed=99)
    for plan in (recorded_plan.data, other):
        plan.pop("times")
        for count in plan["counts"]:
            count.pop("seconds", None)
    assert other == recorded_plan.data


def replay(recording: Path, seed: int) -> dict:
    request = json.dumps({"model": "wan2.1-1.3b"})
    settings = json.dumps({"survivor_floor": 8, "survivor_fraction": 0.05, "runners_up": 5})
    plan: dict = json.loads(_core.replay_plan(str(recording), request, "v5e:2x2", settings, seed, ["jax=recorded"]))
    return plan


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000])
def test_text_that_is_no_json_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        Plan.loads(text)
    assert caught.value.line >= 1
    assert caught.value.column >= 1


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"format": "aoizora plan", "version": 2}', '{"format": "other"}'])
def test_json_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="plan"):
        Plan.loads(text)


def test_every_key_that_serving_needs_is_asked_for(recorded_plan: Plan) -> None:
    for key in ("mesh", "best", "parameters", "axis_rules", "slice"):
        broken = {k: v for k, v in recorded_plan.data.items() if k != key}
        with pytest.raises(InvalidRequest, match=key):
            Plan(broken)
    for key in ("candidate", "placement", "predicted", "passes_step_seconds"):
        best = {k: v for k, v in recorded_plan.data["best"].items() if k != key}
        with pytest.raises(InvalidRequest, match=f'"{key}" is missing'):
            Plan({**recorded_plan.data, "best": best})


def test_mesh_puts_each_rank_on_the_chip_the_plan_names(recorded_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax.sharding.Mesh", lambda grid, names: SimpleNamespace(devices=grid, axis_names=names))
    for devices in (four(), list(reversed(four()))):
        mesh = recorded_plan.mesh(devices)
        placed = [list(d.coords[:2]) for d in mesh.devices.flat]
        assert placed == recorded_plan.data["best"]["placement"]["coordinates"]
        assert list(mesh.devices.shape) == recorded_plan.data["mesh"]["axis_sizes"]
        ids = [d.id for d in mesh.devices.flat]
        assert ids == recorded_plan.data["best"]["placement"]["device_ids"]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (four()[:3], "1 of its places"),
        ([*four(), device(2, 0)], "1 devices have no place"),
        ([device(x, 0) for x in range(4)], "2 of its places"),
        ([*four()[:3], device(1, 1)], "two devices claim"),
        ([device(*d.coords, kind="TPU v6 lite") for d in four()], "v5e chips"),
        ([SimpleNamespace(device_kind="cpu")] * 4, "no chip coordinates.*auto_shard"),
    ],
)
def test_devices_that_are_not_the_slice_are_refused(recorded_plan: Plan, devices: list, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        recorded_plan.mesh(devices)


def test_the_devices_of_libtpu_make_a_mesh(recorded_plan: Plan, tmp_path: Path) -> None:
    """Coordinates, cores, kinds and ids as the real compiler describes them."""
    recorded_plan.save(tmp_path / "plan.json")
    program = (
        "import sys, json\nfrom jax.experimental import topologies\nfrom aoizora import Plan\n"
        "devices = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2').devices\n"
        "mesh = Plan.load(sys.argv[1]).mesh(devices)\nprint(json.dumps([d.id for d in mesh.devices.flat]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "plan.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == recorded_plan.data["best"]["placement"]["device_ids"]


def test_both_times_and_the_rungs_difference_are_printed(recorded_plan: Plan) -> None:
    recorded_plan.data["times"] = {"decision_seconds": 12.34, "verified_seconds": 56.78}
    recorded_plan.data["best"]["rung_difference_percent"] = -1.25
    for text in (terminal.summary(recorded_plan), terminal.explain(recorded_plan)):
        flat = " ".join(text.split())
        assert "decided after 12.3 s, verified by the compiler after 56.8 s" in flat
        assert "the compiler's cycles change the block by -1.2 %" in flat or "by -1.3 %" in flat
    del recorded_plan.data["times"]  # a plan of an older version
    assert "decided after" not in terminal.explain(recorded_plan)


def test_explain_starts_with_the_gain_and_says_where_maxdiffusions_line_is(recorded_plan: Plan) -> None:
    text = terminal.explain(recorded_plan)
    gain, line = text.index("Gain over"), text.index("aoizora export plan.json --to maxdiffusion")
    assert gain < line < text.index("Predicted:")
    for comparison in recorded_plan.data["comparisons"]:
        assert comparison["name"] in text[:line]


def test_the_parts_of_a_block_add_up(recorded_plan: Plan) -> None:
    predicted = recorded_plan.data["best"]["predicted"]
    block = predicted["block"]
    parts = block["compute"]["total_seconds"] + block["exposed_communication_seconds"] + block["contention_seconds"]
    assert parts == pytest.approx(predicted["block_seconds"], rel=0.05)
    assert predicted["video_seconds"] == pytest.approx(50 * predicted["step_seconds"])


@pytest.mark.parametrize("waited", [0.0, 3e-3])
def test_the_rows_of_a_blocks_time_sum_to_the_block(recorded_plan: Plan, waited: float) -> None:
    predicted = copy.deepcopy(recorded_plan.data["best"]["predicted"])
    predicted["block_seconds"] += waited
    predicted["block"]["timeline"]["core"].append(["copy wait", waited])
    *parts, (_, whole, _) = terminal.time_rows(predicted)
    shown = {name: float(milliseconds) for name, milliseconds, _ in parts if not name.startswith("  ")}
    assert sum(shown.values()) == pytest.approx(float(whole), abs=0.005 * (len(shown) + 1))
    waits = sum(seconds for kind, seconds, *_ in predicted["block"]["timeline"]["core"] if kind == "copy wait")
    assert shown["copy wait"] == pytest.approx(waits * 1e3, abs=0.006)


def test_a_shape_that_fits_nowhere_says_what_is_missing() -> None:
    request = json.dumps({"model": "wan2.1-14b", "height": 720, "width": 1280, "frames": 81, "videos": 8})
    with pytest.raises(Infeasible, match="GiB"):
        _core.enumerate(_core.make_workload(request), "v5e:1x1", "{}")


def test_what_is_printed_fits_a_terminal_and_no_two_rows_look_alike(recorded_plan: Plan) -> None:
    for text in (terminal.summary(recorded_plan), terminal.explain(recorded_plan)):
        assert all(len(line) <= terminal.WIDTH for line in text.splitlines())
    names = [row[0] for row in terminal.runner_rows(recorded_plan)]
    assert len(set(names)) == len(names) > 1


def test_an_order_that_jax_gives_only_when_asked_to_split_axes_is_named(recorded_plan: Plan) -> None:
    plan = Plan(copy.deepcopy(recorded_plan.data))
    for split in (False, True):
        plan.data["comparisons"][1]["allow_split_physical_axes"] = split
        lines = " ".join("\n".join(terminal.gain_lines(plan)).split())
        assert ("only with allow_split_physical_axes=True" in lines) == split


def test_an_idle_mesh_axis_is_named(recorded_plan: Plan) -> None:
    plan = Plan(copy.deepcopy(recorded_plan.data))
    for idle in ([], ["tensor"]):
        plan.data["best"]["idle_axes"] = idle
        for text in (terminal.summary(plan), terminal.explain(plan)):
            assert ("mesh axis tensor divides no tensor" in " ".join(text.split())) == bool(idle)


def test_a_deployment_that_is_the_plan_gains_nothing_in_words(recorded_plan: Plan) -> None:
    plan = Plan(copy.deepcopy(recorded_plan.data))
    own = plan.data["best"]["passes_block_seconds"]
    plan.data["comparisons"] = [
        {"name": "today", "passes_block_seconds": own, "gain_seconds_per_block": -1e-12, "gain_percent": -1e-9}
    ]
    text = " ".join(" ".join(terminal.gain_lines(plan)).split())
    assert text.endswith("by the HLO passes, the same as the plan")


def test_the_gain_is_the_difference_of_what_is_printed_beside_it(recorded_plan: Plan) -> None:
    own = recorded_plan.data["best"]["passes_block_seconds"]
    for comparison in recorded_plan.data["comparisons"]:
        assert comparison["gain_seconds_per_block"] == pytest.approx(comparison["passes_block_seconds"] - own)


def test_a_pipe_is_written_to_and_a_link_leads_to_its_file(recorded_plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    recorded_plan.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert Plan.load(tmp_path / "real.json").data == recorded_plan.data
    recorded_plan.save("/dev/null")
    assert Path("/dev/null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]
