"""The rivals: an ILP against brute force, the plans of both baselines against the candidates room and jax."""

import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aoizora import _core
from aoizora.errors import Infeasible, InvalidRequest, ParseError
from aoizora.evaluation import baselines

REQUEST = {"model": "wan2.1-14b", "height": 480, "width": 832, "frames": 21}
GIB = 1 << 30


@pytest.fixture(scope="module")
def program() -> str:
    folder = Path(__file__).resolve().parents[2] / "tests" / "data" / "stablehlo"
    return gzip.decompress((folder / "wan_d2c4_ed_mc.mlir.gz").read_bytes()).decode()


@pytest.fixture(scope="module")
def table() -> str:
    return str(_core.make_workload(json.dumps(REQUEST)))


# -- the ILP against brute force


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Small choice problems: a tree or a graph with cycles, forbidden pairs, memory loose or tight."""
    cost = st.integers(0, 50).map(lambda n: n / 1000)
    size = st.integers(0, 40).map(lambda n: n * (1 << 20))
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    nodes = [
        {
            "name": f"n{v}",
            "cost_seconds": draw(st.lists(cost, min_size=n, max_size=n)),
            "resident_bytes": draw(st.lists(size, min_size=n, max_size=n)),
        }
        for v, n in enumerate(counts)
    ]
    edges = []
    if len(counts) > 1:
        for _ in range(draw(st.integers(0, 6))):
            u, v = draw(st.permutations(range(len(counts))))[:2]
            p, q = draw(st.integers(1, counts[u])), draw(st.integers(1, counts[v]))
            edges.append(
                {
                    "from": u, "to": v, "from_classes": p, "to_classes": q,
                    "from_class": draw(st.lists(st.integers(0, p - 1), min_size=counts[u], max_size=counts[u])),
                    "to_class": draw(st.lists(st.integers(0, q - 1), min_size=counts[v], max_size=counts[v])),
                    "cost_seconds": draw(st.lists(st.one_of(st.none(), cost, cost), min_size=p * q, max_size=p * q)),
                }
            )  # fmt: skip
    moments = []
    for _ in range(draw(st.integers(0, 3))):
        held = draw(st.lists(st.integers(0, len(counts) - 1), max_size=3))
        copies = draw(st.lists(st.integers(0, len(edges) - 1), max_size=2)) if edges else []
        moments.append(
            {
                "nodes": [
                    {"node": v, "bytes": draw(st.lists(size, min_size=counts[v], max_size=counts[v]))} for v in held
                ],
                "edges": [{"edge": e, "bytes": [draw(size) for _ in edges[e]["cost_seconds"]]} for e in copies],
            }
        )
    return {
        "nodes": nodes,
        "edges": edges,
        "moments": moments,
        "resident_bytes": draw(size),
        "memory_bytes": draw(st.sampled_from([0, 40, 80, 120, 200])) * (1 << 20),
    }


def value(problem: dict[str, Any], choices: tuple[int, ...]) -> float:
    """Cost of a choice for each node, infinite where it is forbidden or does not fit."""
    cost = sum(node["cost_seconds"][s] for node, s in zip(problem["nodes"], choices, strict=True))
    resident = problem["resident_bytes"]
    resident += sum(node["resident_bytes"][s] for node, s in zip(problem["nodes"], choices, strict=True))
    pairs = []
    for edge in problem["edges"]:
        p, q = edge["from_class"][choices[edge["from"]]], edge["to_class"][choices[edge["to"]]]
        pairs.append(p * edge["to_classes"] + q)
        extra = edge["cost_seconds"][pairs[-1]]
        cost += math.inf if extra is None else extra
    held = [
        sum(term["bytes"][choices[term["node"]]] for term in moment["nodes"])
        + sum(term["bytes"][pairs[term["edge"]]] for term in moment["edges"])
        for moment in problem["moments"]
    ]
    fits = not problem["memory_bytes"] or resident + max(held, default=0) <= problem["memory_bytes"]
    return cost if fits else math.inf


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_optimum_of_the_ilp_is_that_of_brute_force(problem: dict[str, Any]) -> None:
    every = itertools.product(*(range(len(node["cost_seconds"])) for node in problem["nodes"]))
    best = min(value(problem, choices) for choices in every)
    text = json.dumps(problem)
    columns = baselines.solve(json.loads(_core.choice_model(text)))
    if math.isinf(best):
        assert columns is None
    else:
        assert columns is not None
        assert value(problem, tuple(_core.choice_solution(text, columns))) == pytest.approx(best, abs=1e-8)


def test_solution_below_a_bound_only() -> None:
    problem = {
        "nodes": [{"name": "n", "cost_seconds": [2.0, 3.0], "resident_bytes": [0, 0]}],
        "edges": [], "moments": [], "resident_bytes": 0, "memory_bytes": 0,
    }  # fmt: skip
    model = json.loads(_core.choice_model(json.dumps(problem)))
    assert baselines.solve(model, bound=2500.0) is not None  # in the model's milliseconds
    assert baselines.solve(model, bound=2000.0) is None


# -- the Alpa-style plan


def optimum(program: str, table: str, slice: str, mesh: str, options: str) -> float:
    """Seconds of the best plan on one mesh."""
    model = json.loads(_core.alpa_model(program, table, slice, mesh, options))
    columns = baselines.solve(model)
    assert columns is not None
    return float(json.loads(_core.alpa_plan(program, table, slice, mesh, options, columns))["total_seconds"])


def test_plan_is_a_legal_candidate_on_the_order_of_mesh_utils(program: str, table: str) -> None:
    plan = baselines.alpa(REQUEST, "v5e:2x4", program=program)
    listed = json.loads(_core.enumerate(table, "v5e:2x4", json.dumps({"minimum_weight_sharding": 1})))["candidates"]
    signature = _core.canonical_signature(table, json.dumps(plan.candidate))
    assert signature in {entry["signature"] for entry in listed}
    shape = {axis["name"]: axis["size"] for axis in plan.candidate["mesh"]}
    expected = _core.mesh_utils_order(json.dumps(shape), "v5e:2x4", plan.split_physical_axes)
    assert plan.coordinates == expected
    assert sorted(plan.devices or []) == list(range(8))
    parts = plan.seconds
    assert parts["total"] == pytest.approx(parts["compute"] + parts["communication"] + parts["reshard"])


def test_optimum_over_meshes_is_the_least_of_them(program: str, table: str) -> None:
    meshes = _core.alpa_meshes(table, "v5e:2x2", "{}")
    each = [optimum(program, table, "v5e:2x2", mesh, "{}") for mesh in meshes]
    assert baselines.alpa(REQUEST, "v5e:2x2", program=program).seconds["total"] == pytest.approx(min(each), rel=1e-5)


def test_less_freedom_never_helps(program: str) -> None:
    every = baselines.alpa(REQUEST, "v5e:2x2", program=program, memory=False)
    without_ulysses = baselines.alpa(REQUEST, "v5e:2x2", program=program, memory=False, ulysses=False)
    within = baselines.alpa(REQUEST, "v5e:2x2", program=program)
    assert every.seconds["total"] <= without_ulysses.seconds["total"] * (1 + 1e-5)
    assert every.seconds["total"] <= within.seconds["total"] * (1 + 1e-5)
    assert within.memory_bytes <= 15.75 * GIB
    assert without_ulysses.candidate["attention"] == "gathered"


def test_what_cannot_fit_is_infeasible(program: str) -> None:
    with pytest.raises(Infeasible, match="GiB"):
        baselines.alpa(REQUEST, "v5e:2x2", program=program, hbm_budget_bytes=7 * GIB)


def test_another_program_is_refused(program: str) -> None:
    with pytest.raises(ParseError):
        baselines.alpa({**REQUEST, "model": "wan2.1-1.3b"}, "v5e:2x2", program=program)
    with pytest.raises(InvalidRequest):
        _core.alpa_meshes(_core.make_workload("{}"), "v5e:2x2", '{"placement": true}')


# -- the expert


@pytest.mark.parametrize(("slice", "mesh"), [("v5e:2x2", (2, 1, 2, 1)), ("v5e:2x4", (2, 1, 4, 1))])
def test_rule_picks_the_published_recipe(slice: str, mesh: tuple[int, ...]) -> None:
    first = baselines.expert(REQUEST, slice)[0]
    assert first.rank == 0
    assert tuple(axis["size"] for axis in first.candidate["mesh"]) == mesh
    assert first.candidate["attention"] == "gathered"
    assert first.candidate["rules"]["embed"] == ["context"]


def test_without_guidance_all_is_on_context() -> None:
    first = baselines.expert({**REQUEST, "cfg": False}, "v5e:2x4")[0]
    assert tuple(axis["size"] for axis in first.candidate["mesh"]) == (1, 1, 8, 1)


def test_every_member_is_placed_as_mesh_utils_places_it() -> None:
    for member in baselines.expert(REQUEST, "v5e:4x4", ulysses=True):
        shape = json.dumps({axis["name"]: axis["size"] for axis in member.candidate["mesh"]})
        if member.split_physical_axes:
            with pytest.raises(Infeasible):
                _core.mesh_utils_order(shape, "v5e:4x4", False)
        if member.coordinates is not None:
            assert member.coordinates == _core.mesh_utils_order(shape, "v5e:4x4", member.split_physical_axes)
