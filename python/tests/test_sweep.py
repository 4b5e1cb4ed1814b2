"""Many plans from one file: all combinations, kept as they come, the same here and on a cluster."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from aoizora import Error, InvalidRequest, ParseError, Plan, cache, sweeping
from aoizora.cli import main

# One of these is in the cache, the other does not fit in HBM: both are answered without the compiler.
TOML = """
model = ["wan2.1-1.3b", "wan2.1-14b"]
slice = "v5e:2x2"
[settings]
survivor_floor = 8
"""
FITTING = "wan2.1-1.3b_480x832_21f_v5e-2x2"


@pytest.fixture
def file(tmp_path: Path, recorded_plan: Plan) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    first, second = sweeping.read(path)
    assert first.name == FITTING
    cache.store(sweeping._key(first), recorded_plan)
    second.arguments["slice"] = "v5e:1x1"
    return path


@pytest.fixture
def tasks(file: Path) -> list[sweeping.Task]:
    first, second = sweeping.read(file)
    return [first, second._replace(arguments={**second.arguments, "slice": "v5e:1x1"})]


def test_a_sweep_is_over_all_combinations(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('size = ["480x832", "720x1280"]\nframes = [21, 81]\nslice = ["v5e:2x2", "v5e:4x4"]\ncfg = false\n')
    tasks = sweeping.read(path)
    assert len({task.name for task in tasks}) == len(tasks) == 8
    assert tasks[0].arguments == {
        "model": "wan2.1-14b", "frames": 21, "slice": "v5e:2x2", "videos": 1, "cfg": False, "steps": 50,
        "dtype": "bf16", "size": (480, 832), "reserved_hbm_bytes": 0, "settings": {},
    }  # fmt: skip
    axes = (((480, 832), (720, 1280)), (21, 81), ("v5e:2x2", "v5e:4x4"))
    found = {(t.arguments["size"], t.arguments["frames"], t.arguments["slice"]) for t in tasks}
    assert found == set(itertools.product(*axes))


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("model = ", ParseError, "sweep.toml"),
        ('modle = "wan2.1-14b"', InvalidRequest, "unknown modle; known: model"),
        ('model = "wan3"', InvalidRequest, "wan3"),
        ('size = "480"', InvalidRequest, "height x width"),
        ("size = []", InvalidRequest, "empty"),
        ("frames = [21, 21]", InvalidRequest, "twice"),
        ("frames = true", InvalidRequest, "sweep.toml: frames has True; each must be like 21"),
        ("frames = [21, 20]", InvalidRequest, r"sweep.toml, wan2.1-14b_480x832_20f_v5e-4x4: frames is 20"),
        ('slice = "v9:1x1"', InvalidRequest, "v9"),
        ("settings = 3", InvalidRequest, "table settings"),
        ("[settings]\nfinalist = 3", InvalidRequest, "finalist"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_planned(
    tmp_path: Path, text: str, error: type[Error], said: str
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(error, match=said):
        sweeping.read(path)


def refuse(tasks: object) -> Iterator[object]:
    assert list(tasks) == []  # type: ignore[call-overload]
    return iter(())


def test_a_failure_is_a_row_and_a_second_sweep_keeps_what_is_there(
    tasks: list[sweeping.Task], tmp_path: Path, recorded_plan: Plan
) -> None:
    rows = sweeping.run(tasks, tmp_path / "plans", sweeping.local())
    assert [row.outcome for row in rows] == ["planned", "failed"]
    assert rows[0].step_seconds == recorded_plan.data["best"]["predicted"]["step_seconds"]
    assert "nothing fits" in rows[1].error
    assert rows[1].exit_code == 3
    assert Plan.load(tmp_path / "plans" / f"{FITTING}.json").data == recorded_plan.data
    assert json.loads((tmp_path / "plans" / "sweep.json").read_text()) == [row._asdict() for row in rows]
    again = sweeping.run(tasks[:1], tmp_path / "plans", refuse)  # type: ignore[arg-type]
    assert again == [rows[0]._replace(outcome="kept")]


@pytest.mark.parametrize("change", ["settings", "plan", "key"])
def test_what_would_be_planned_otherwise_is_planned_again(
    tasks: list[sweeping.Task], tmp_path: Path, change: str
) -> None:
    task, folder = tasks[0], tmp_path / "plans"
    sweeping.run([task], folder, sweeping.local())
    assert sweeping.kept(task, folder)
    if change == "settings":
        task.arguments["settings"]["survivor_floor"] = 9
    elif change == "plan":
        (folder / f"{FITTING}.json").write_text("{")
    else:
        (folder / f".{FITTING}.key").unlink()
    assert sweeping.kept(task, folder) is None


def test_a_cluster_gives_what_is_given_here(tasks: list[sweeping.Task], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    here = sweeping.run(tasks, tmp_path / "here", sweeping.local())
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        planner = sweeping.on_cluster(cluster.scheduler_address)
        there = sweeping.run(tasks, tmp_path / "there", planner)
    assert there == here
    name = f"{FITTING}.json"
    assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_no_scheduler_and_another_version_are_said(
    tasks: list[sweeping.Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    with pytest.raises(InvalidRequest, match="no Dask scheduler"):
        sweeping.run(tasks, tmp_path / "plans", sweeping.on_cluster("nonsense://here"))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        monkeypatch.setattr(sweeping, "_versions", lambda: ["other", "libtpu=0.0.1"])
        with pytest.raises(InvalidRequest, match=r"another AoiZora.*libtpu=0\.0\.1"):
            sweeping.run(tasks, tmp_path / "plans", sweeping.on_cluster(cluster.scheduler_address))


def test_the_command_prints_the_table_and_the_worst_exit_code(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TOML.replace('["wan2.1-1.3b", "wan2.1-14b"]', '"wan2.1-1.3b"'))
    arguments = ["sweep", str(file), "--out", str(tmp_path / "plans")]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert f"1/1 {FITTING} planned" in first.err
    assert FITTING in first.out
    assert main([*arguments, "--quiet"]) == 0
    again = capsys.readouterr()
    assert (again.err, "kept" in again.out) == ("", True)
    assert main([*arguments, "--quiet", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["outcome"]) == (FITTING, "kept")
    assert main(["sweep", str(tmp_path / "none.toml")]) == 2
