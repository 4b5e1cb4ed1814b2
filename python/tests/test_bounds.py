"""Bounds that spare the planner work, against fresh answers of the compiler; bounds_test.cpp has recorded ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aoizora import _core
from aoizora.compiler.store import AnswerStore
from aoizora.evaluation import sweep

ROUNDING = 1 + 1e-9
PARTS = ("seconds", "compute_seconds", "communication_seconds", "carried_all_reduce_seconds")


def _answers(
    workload: sweep.Workload, folder: Path, candidates: list[dict[str, Any]], rung: str
) -> list[dict[str, Any]]:
    store = AnswerStore(folder / "answers.sqlite")
    try:
        return sweep.ask(workload, store, [sweep.job(candidate, rung) for candidate in candidates])
    finally:
        store.close()


def _check_q1(workload: sweep.Workload, candidates: list[dict[str, Any]], folder: Path) -> None:
    """No part of the bound is above the same part of Q1."""
    for candidate, answer in zip(candidates, _answers(workload, folder, candidates, "propagate"), strict=True):
        assert answer["outcome"] == "ok"
        text = json.dumps(candidate)
        q1 = json.loads(_core.predict(answer["text"], workload.table_json, text, workload.slice, workload.layers))["q1"]
        bound = _core.q1_bound(workload.table_json, text, workload.slice)
        for part, least in zip(PARTS, bound, strict=True):
            assert least <= q1[part] * ROUNDING, (part, candidate)


@pytest.mark.parametrize("slice_name", ["v5e:2x4", "v5e:4x4"])
def test_q1_bound_of_a_sample(slice_name: str, tmp_path: Path) -> None:
    workload = sweep.Workload(slice_name, 480, 41, "wan2.1-1.3b")
    _check_q1(workload, sweep.sample(workload, workload.candidates, 24), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("slice_name", ["v5e:2x2"])
def test_q1_bound_of_all_candidates(slice_name: str, tmp_path: Path) -> None:
    workload = sweep.Workload(slice_name, 480, 21)
    _check_q1(workload, workload.candidates, tmp_path)


def test_block_bound_is_no_more_than_any_placements_q2(tmp_path: Path) -> None:
    workload = sweep.Workload("v5e:2x4", 480, 21, "wan2.1-1.3b")
    candidates = sweep.sample(workload, workload.candidates, 6)
    propagated = _answers(workload, tmp_path, candidates, "propagate")
    compiled = _answers(workload, tmp_path, candidates, "passes")
    for candidate, before, after in zip(candidates, propagated, compiled, strict=True):
        text = json.dumps(candidate)
        bound = _core.block_bound(before["text"], workload.table_json, text, workload.slice)
        if after["outcome"] != "ok":
            continue
        priced = json.loads(
            _core.price(
                after["text"], after["memory_report"], workload.table_json, text, workload.slice, workload.layers,
                "passes",
            )
        )  # fmt: skip
        best = min(placement["block_seconds"] for placement in priced["placements"])
        assert 0 < bound[1] <= bound[0] <= best * ROUNDING, candidate
