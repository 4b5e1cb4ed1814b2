"""The simulation room from Python: texts in, numbers and JSON out."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import pytest

from aoizora import _core
from aoizora.errors import InvalidRequest, ParseError

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "hlo"
SLICE = "v5e:2x4"
LAYERS = 40
IDENTITY = list(range(8))
COLUMNS = [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.fixture(scope="module")
def text() -> str:
    return gzip.decompress((DATA / "flash_d2c2t2.hlo.txt.gz").read_bytes()).decode()


def timing(text: str, devices: list[int], rate_scale: float = 1.0) -> dict:
    return json.loads(_core.simulate(text, "", "", SLICE, devices, LAYERS, "code", rate_scale))


def test_many_placements_are_timed_as_each_alone(text: str) -> None:
    placements = [IDENTITY, COLUMNS, IDENTITY[::-1]]
    many = _core.simulate_many(text, "", "", SLICE, placements, LAYERS, "code")
    for devices, (step, block) in zip(placements, many, strict=True):
        alone = timing(text, devices)
        assert (step, block) == (alone["step_seconds"], alone["block_seconds"])
    assert many[0] != many[1]
    assert many[0] == pytest.approx(many[2]), "a half turn"


def test_a_step_is_its_blocks_and_the_rest(text: str) -> None:
    whole = timing(text, IDENTITY)
    assert whole["step_seconds"] == pytest.approx(whole["outside_seconds"] + LAYERS * whole["block_seconds"])
    assert 0 < whole["exposed_communication_seconds"] < whole["block_seconds"]
    assert all(one["start_seconds"] <= one["end_seconds"] for one in whole["collectives"])
    assert timing(text, IDENTITY, 0.5)["step_seconds"] > whole["step_seconds"]


def test_rates_of_a_descriptor_apply(text: str, tmp_path: Path) -> None:
    """Links of a descriptor with half the rate are links at half the rate."""
    slow = json.loads(_core.slice_json(SLICE))
    bytes_per_second = slow["hardware"]["ici_bytes_per_second"]
    bytes_per_second["value"] /= 2
    for rates in slow["hardware"]["collectives"].values():
        rates["flow_bytes_per_second"]["value"] /= 2
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(slow))
    half = json.loads(_core.simulate(text, "", "", str(path), IDENTITY, LAYERS, "code"))
    assert half["step_seconds"] == pytest.approx(timing(text, IDENTITY, 0.5)["step_seconds"])


def test_compact_groups_take_half_of_strided_ones() -> None:
    compact, strided = (
        _core.collective("all-reduce", json.dumps(groups), 1e9, IDENTITY, SLICE)
        for groups in ([[0, 1, 4, 5], [2, 3, 6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]])
    )
    assert strided / compact == pytest.approx(2, rel=1e-3)


def test_permutes_take_pairs() -> None:
    alone = _core.collective("collective-permute", "[[0, 1]]", 1e9, IDENTITY, SLICE)
    assert _core.collective("collective-permute", "[[0, 1], [1, 0]]", 1e9, IDENTITY, SLICE) == alone, "full duplex"
    assert _core.collective("collective-permute", "[[0, 2], [1, 3]]", 1e9, IDENTITY, SLICE) > 1.3 * alone


def test_schedule_is_under_the_placement(text: str) -> None:
    here, there = (
        json.loads(_core.schedule(text, "", "", SLICE, devices, LAYERS, "code")) for devices in (IDENTITY, COLUMNS)
    )
    assert (here["format"], here["version"], here["layers"]) == ("aoizora-schedule", 1, LAYERS)
    assert here["sequences"] == there["sequences"]
    assert there["placement"] == COLUMNS
    for one, moved in zip(here["collectives"], there["collectives"], strict=True):
        assert moved["groups"] == [[COLUMNS[device] for device in group] for group in one["groups"]]
        assert moved["bytes"] == one["bytes"]
    steps = [step for sequence in here["sequences"] for step in sequence["steps"]]
    assert {step[0] for step in steps} <= {"compute", "start", "done", "sync", "loop", "copy_start", "copy_done"}
    assert ["loop", here["block"], LAYERS] in steps


def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="rung"):
        _core.simulate(text, "", "", SLICE, IDENTITY, LAYERS, "guess")
    with pytest.raises(InvalidRequest, match="named twice"):
        _core.simulate(text, "", "", SLICE, [0] * 8, LAYERS, "code")
    with pytest.raises(InvalidRequest, match="same number of devices"):
        _core.simulate(text, "", "", SLICE, IDENTITY[:4], LAYERS, "code")
    with pytest.raises(InvalidRequest, match="layers"):
        _core.schedule(text, "", "", SLICE, IDENTITY, 0, "code")
    with pytest.raises(ParseError):
        _core.simulate_many("not HLO", "", "", SLICE, [IDENTITY], LAYERS, "code")
    with pytest.raises(InvalidRequest, match="known: all-gather"):
        _core.collective("all_gather", "[]", 1.0, IDENTITY, SLICE)
    for groups in ("[[0.5, 1]]", "[0, 1]", "{}", "[[0, 99]]", "[[0, 0]]", "", "[" * 100_000):
        with pytest.raises(InvalidRequest):
            _core.collective("all-gather", groups, 1.0, IDENTITY, SLICE)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest):
            _core.collective("all-gather", "[]", bad, IDENTITY, SLICE)


def test_python_runs_on_meanwhile(text: str) -> None:
    """The interpreter is not held: another thread gets on while placements are timed."""
    turns = 0
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            done.wait(1e-4)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = turns
        _core.simulate_many(text, "", "", SLICE, [IDENTITY, COLUMNS] * 200, LAYERS, "code")
        assert turns > before + 1
    finally:
        done.set()
        thread.join()
