"""Q2 from Python: many placements in one call, and the bench that times them."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from aoizora import _core
from aoizora.errors import InvalidRequest

ROOT = Path(__file__).resolve().parents[2]
SLICE = "v5e:2x4"
LAYERS = 40
ORDERS = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 4, 1, 5, 2, 6, 3, 7], [0, 2, 1, 3, 4, 6, 5, 7]]


@pytest.fixture(scope="module")
def text() -> str:
    return gzip.decompress((ROOT / "tests" / "data" / "hlo" / "flash_d2c2t2.hlo.txt.gz").read_bytes()).decode()


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_q2", ROOT / "bench" / "q2.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_many_are_each(text: str) -> None:
    many = _core.score_many(text, "", "", SLICE, ORDERS, LAYERS, "code")
    for order, (step, block) in zip(ORDERS, many, strict=True):
        one = json.loads(_core.score(text, "", "", SLICE, order, LAYERS, "code"))
        assert (step, block) == (one["step_seconds"], one["block_seconds"])
    assert len(set(many)) > 1
    assert _core.score_many(text, "", "", SLICE, [], LAYERS, "code") == []
    with pytest.raises(InvalidRequest):
        _core.score_many(text, "", "", SLICE, [[0] * 8], LAYERS, "code")


def test_stretched_to_its_own_size_a_program_costs_the_same(text: str, bench: ModuleType) -> None:
    again = bench.stretched(text, (2, 2, 2))
    for (step, _), (same, _) in zip(
        _core.score_many(text, "", "", SLICE, ORDERS, LAYERS, "code"),
        _core.score_many(again, "", "", SLICE, ORDERS, LAYERS, "code"),
        strict=True,
    ):
        assert step == pytest.approx(same, rel=1e-3)  # two permutes outside the block become shifts


def test_stretched_groups_keep_their_axes(text: str, bench: ModuleType) -> None:
    again = bench.stretched(text, (2, 8, 4))
    tensor, context = list(range(4)), [4 * i for i in range(8)]
    assert "replica_groups={{" + ",".join(map(str, tensor)) + "}," in again
    assert "replica_groups={{" + ",".join(map(str, context)) + "}," in again
    assert "num_partitions=64" in again
