"""A program written into a shared trace is the program that a trace of its own gives."""

from __future__ import annotations

import functools
import json
import random
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

from aoizora import _core
from aoizora.compiler import annotate, private
from aoizora.errors import InvalidRequest
from aoizora.models import build_step

LAYERS = 3
EVERY = 1 << 20
REQUEST = {"model": "wan2.1-1.3b", "height": 480, "width": 832, "frames": 21}
MESH = [{"name": name, "size": 2} for name in ("data", "fsdp", "context", "tensor")]


@functools.cache
def candidates(slice_name: str) -> list[dict[str, Any]]:
    workload = _core.make_workload(json.dumps(REQUEST))
    return [each["candidate"] for each in json.loads(_core.enumerate(workload, slice_name, "{}"))["candidates"]]


def some(slice_name: str, count: int) -> list[dict[str, Any]]:
    """Of each kind of attention alike."""
    chosen = random.Random(7)
    kinds = [[c for c in candidates(slice_name) if c["attention"] == kind] for kind in ("gathered", "ulysses")]
    return [c for kind in kinds for c in chosen.sample(kind, min(count // 2, len(kind)))]


def abstract_mesh(axes: dict[str, int]) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes))


def fresh(candidate: dict[str, Any], attention: str) -> str:
    mesh = abstract_mesh({axis["name"]: axis["size"] for axis in candidate["mesh"]})
    step, arguments = build_step(REQUEST, candidate, mesh, LAYERS, attention)
    lowered = jax.jit(step).trace(*arguments).lower(lowering_platforms=("tpu",))
    return lowered.as_text(debug_info=attention == "tpu")


def rewritten(candidate: dict[str, Any], attention: str, traces: annotate.Traces) -> str:
    text = annotate.lowered_text(build_step, REQUEST, candidate, LAYERS, attention, abstract_mesh, traces)
    assert text is not None
    return text


def prediction(text: str, slice_name: str, candidate: dict[str, Any]) -> dict[str, Any]:
    """All nodes in order, with kinds, axes, bytes, trips, and Q1; operations have other numbers."""
    workload = _core.make_workload(json.dumps(REQUEST))
    found = json.loads(_core.predict(private.propagate(text), workload, json.dumps(candidate), slice_name, LAYERS))
    for node in found["nodes"]:
        node["what"] = re.sub(r"%[\w#]+", "%", node["what"])
    return found


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    private.quiet_locations()


@pytest.mark.parametrize(
    ("slice_name", "count"),
    [
        ("v5e:2x2", 6),
        ("v5e:4x4", 8),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (("v5e:2x2", EVERY), ("v5e:2x4", 16))),
    ],
)
def test_collectives_and_q1_are_those_of_a_fresh_trace(slice_name: str, count: int, tmp_path: Path) -> None:
    traces = annotate.Traces(tmp_path / "traces")
    for candidate in some(slice_name, count):
        one = prediction(rewritten(candidate, "opaque", traces), slice_name, candidate)
        other = prediction(fresh(candidate, "opaque"), slice_name, candidate)
        assert one == other, candidate
        assert any(node["kind"] != "compute" for node in one["nodes"])
    assert len(list((tmp_path / "traces").iterdir())) == 1, "one trace serves all candidates"


@pytest.mark.parametrize(("slice_name", "count"), [("v5e:4x4", 4), pytest.param("v5e:2x4", 10, marks=pytest.mark.slow)])
def test_a_program_with_its_kernel_is_that_of_a_fresh_trace(slice_name: str, count: int, tmp_path: Path) -> None:
    """Operation for operation, names of places included: what XLA gets is the same."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    def printed(text: str) -> str:
        with mlir.make_ir_context():
            return str(ir.Module.parse(text).operation.get_asm(enable_debug_info=True))

    traces = annotate.Traces(tmp_path / "traces")
    chosen = some(slice_name, count)
    for candidate in chosen:
        assert printed(rewritten(candidate, "tpu", traces)) == printed(fresh(candidate, "tpu")), candidate
    assert len(list((tmp_path / "traces").iterdir())) <= len(chosen)


def test_candidates_that_hold_the_same_share_a_trace_with_its_kernel(tmp_path: Path) -> None:
    traces = annotate.Traces(tmp_path / "traces")
    for heads, embed in ((["fsdp"], []), (["tensor"], ["fsdp"]), (["tensor"], ["data", "fsdp"])):
        rules = {"batch": ["data"], "sequence": ["context"], "heads": heads, "embed": embed, "mlp": heads}
        rewritten({"mesh": MESH, "rules": rules}, "tpu", traces)
    assert len(list((tmp_path / "traces").iterdir())) == 1
    rewritten({"mesh": MESH, "rules": rules | {"heads": []}}, "tpu", traces)
    assert len(list((tmp_path / "traces").iterdir())) == 2


def test_what_a_fresh_trace_refuses_is_refused(tmp_path: Path) -> None:
    traces = annotate.Traces(tmp_path / "traces")
    for rules, attention in (
        ({"embed": ["fsdp"], "heads": ["fsdp", "tensor"]}, "gathered"),
        ({"heads": ["data", "fsdp", "tensor"]}, "gathered"),
        ({"heads": ["tensor"], "sequence": ["data", "fsdp", "context"]}, "ulysses"),
        ({"heads": ["model"]}, "gathered"),
    ):
        candidate = {"mesh": MESH, "rules": rules, "attention": attention}
        for refused in (lambda c: fresh(c, "opaque"), lambda c: rewritten(c, "opaque", traces)):
            with pytest.raises(InvalidRequest):
                refused(candidate)


@pytest.mark.parametrize(
    "change",
    [
        {"mesh": [{"name": "x", "size": 16}], "rules": {"heads": ["x"]}},
        {"rules": {"text": ["tensor"]}},
        {"mesh": [{**axis, "size": 1} for axis in MESH]},
    ],
)
def test_a_candidate_that_no_shared_trace_serves_gets_its_own(change: dict[str, Any], tmp_path: Path) -> None:
    candidate = {"mesh": MESH, "rules": {"heads": ["tensor"]}, **change}
    traces = annotate.Traces(tmp_path / "traces")
    assert annotate.lowered_text(build_step, REQUEST, candidate, LAYERS, "opaque", abstract_mesh, traces) is None


def test_traces_are_read_by_other_workers(tmp_path: Path) -> None:
    assert annotate.Traces(tmp_path / "traces").get("key", lambda: "text") == "text"
    assert annotate.Traces(tmp_path / "traces").get("key", lambda: pytest.fail("traced again")) == "text"
