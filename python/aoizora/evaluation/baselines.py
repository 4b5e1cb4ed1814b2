"""The two rivals of the planner, docs/baselines.md: the expert deployment and an Alpa-style logical search.

    python -m aoizora.evaluation.baselines [SLICE:HEIGHT:FRAMES ...]

Needs the extra `evaluate` (HiGHS).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from aoizora import _core
from aoizora.errors import CompilerFailed, Infeasible
from aoizora.evaluation.sweep import Workload, all_workloads, job

_GAP = 1e-6  # relative gap at which an ILP counts as solved
_MESH_SECONDS = 120.0


@dataclass(frozen=True)
class Baseline:
    """One deployment: a candidate on the device order of jax's mesh_utils."""

    candidate: dict[str, Any]
    devices: list[int] | None  # by logical rank, in the slice's numbering; None: jax cannot lay this mesh
    coordinates: list[list[int]] | None
    split_physical_axes: bool  # jax raises unless allow_split_physical_axes is set
    memory_bytes: float  # expert: M̂, a lower bound; alpa: its own account
    rank: int | None = None  # expert: place in the written rule's order
    seconds: dict[str, float] = field(default_factory=dict)  # alpa: objective by parts, one denoising step
    operators: list[dict[str, str]] = field(default_factory=list)  # alpa: each operator's choice


def expert(request: Mapping[str, Any], slice: str, *, ulysses: bool = False) -> list[Baseline]:
    """The stock family on a slice: members with a rank first, in the order the written rule tries them.

    The rule takes the first that fits in HBM, the search the fastest of all; both ask the compiler.
    """
    table = _core.make_workload(_core.request_json(json.dumps(dict(request))))
    family = json.loads(_core.expert_family(table, slice, json.dumps({"ulysses": ulysses})))
    return [
        Baseline(
            candidate=member["candidate"],
            devices=member["placement"] and member["placement"]["devices"],
            coordinates=member["placement"] and member["placement"]["coordinates"],
            split_physical_axes=bool(member["placement"] and member["placement"]["split_physical_axes"]),
            memory_bytes=member["memory_estimate_bytes"],
            rank=member["rank"],
        )
        for member in family
    ]


def alpa(
    request: Mapping[str, Any],
    slice: str,
    *,
    program: str | None = None,
    memory: bool = True,
    ulysses: bool = True,
    hbm_budget_bytes: int = 0,
) -> Baseline:
    """The best logical sharding by the ILP of aoizora/baseline/alpa.h, over all logical meshes.

    program: StableHLO of the request under any candidate; traced and propagated by the worker if not given. memory:
    hold the plan to the budget by the ILP's own account. Raises Infeasible where it holds for no sharding.
    """
    request_json = _core.request_json(json.dumps(dict(request)))
    table = _core.make_workload(request_json)
    program = program or propagated(request_json)
    options = json.dumps({"memory": memory, "ulysses": ulysses, "hbm_budget_bytes": hbm_budget_bytes})
    solved = _best(program, table, slice, options)
    if solved is None:
        least = _best(program, table, slice, json.dumps({**json.loads(options), "memory": False}))
        needs = "" if least is None else f"; the best without that bound takes {least['memory_bytes'] / 2**30:.2f} GiB"
        raise Infeasible(f"no sharding of the Alpa-style search fits in HBM by its own account{needs}")
    shape = {axis["name"]: axis["size"] for axis in solved["candidate"]["mesh"]}
    devices, coordinates, split = _mesh_utils(shape, slice)
    return Baseline(
        candidate=solved["candidate"],
        devices=devices,
        coordinates=coordinates,
        split_physical_axes=split,
        memory_bytes=solved["memory_bytes"],
        seconds={part: solved[f"{part}_seconds"] for part in ("total", "compute", "communication", "reshard")},
        operators=solved["operators"],
    )


def free_seconds(request: Mapping[str, Any], slice: str, *, program: str | None = None, memory: bool = True) -> float:
    """The optimum where operators share no axis rules, on meshes of two axes: what rules cost by the ILP's account."""
    request_json = _core.request_json(json.dumps(dict(request)))
    table = _core.make_workload(request_json)
    options = json.dumps({"rules": False, "memory": memory})
    solved = _best(program or propagated(request_json), table, slice, options)
    if solved is None:
        raise Infeasible("no sharding of the free search fits in HBM by its own account")
    return float(solved["total_seconds"])


@lru_cache(maxsize=32)
def propagated(request_json: str) -> str:
    """StableHLO of a request's step under its first legal candidate on four chips; operators depend on neither."""
    from aoizora.compiler.queue import WorkerQueue

    slice_name, coordinates = "v5e:2x2", [([x, y], 0) for x in range(2) for y in range(2)]
    anything = {"hbm_budget_bytes": 1 << 50, "minimum_weight_sharding": 1, "ulysses": False}
    found = _core.enumerate(_core.make_workload(request_json), slice_name, json.dumps(anything))
    candidate = json.loads(found)["candidates"][0]["candidate"]
    with WorkerQueue(json.loads(request_json), slice_name, coordinates, workers=1) as queue:
        queue.submit(json.dumps({**job(candidate, "propagate"), "id": 0, "priority": 0.0}))
        answer = queue.next()
    if answer["outcome"] != "ok":
        raise CompilerFailed(f"the request's program was not lowered: {answer['failure']}")
    return str(answer["text"])


def _best(program: str, table: str, slice: str, options: str) -> dict[str, Any] | None:
    """The best plan over all logical meshes; None where no mesh has one."""
    best: dict[str, Any] | None = None
    try:
        meshes = _core.alpa_meshes(table, slice, options)
    except Infeasible:  # not even the lower bound of any candidate's memory fits
        return None
    for mesh in meshes:
        # A mesh must be better by more than the gap, in the model's milliseconds: of equal plans the first stays.
        bound = np.inf if best is None else best["total_seconds"] * (1 - 2 * _GAP) * 1e3
        columns = solve(json.loads(_core.alpa_model(program, table, slice, mesh, options)), bound)
        if columns is None:
            continue
        plan = json.loads(_core.alpa_plan(program, table, slice, mesh, options, columns))
        best = plan
    return best


def solve(model: Mapping[str, Any], bound: float = np.inf) -> list[float] | None:
    """Columns of an optimal solution of a sparse model, by HiGHS; None if there is none or none below `bound`."""
    try:
        import highspy
    except ImportError as error:
        raise ImportError("the Alpa-style baseline needs HiGHS: pip install 'aoizora[evaluate]'") from error
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model["objective"]), len(model["row_lower"])
    lp.col_cost_ = np.array(model["objective"], dtype=np.float64)
    lp.col_lower_ = np.array(model["column_lower"], dtype=np.float64)
    lp.col_upper_ = np.array(model["column_upper"], dtype=np.float64)
    lp.row_lower_ = np.array(model["row_lower"], dtype=np.float64)
    lp.row_upper_ = np.array(model["row_upper"], dtype=np.float64)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
    lp.a_matrix_.start_ = np.array(model["row_starts"], dtype=np.int32)
    lp.a_matrix_.index_ = np.array(model["column_indices"], dtype=np.int32)
    lp.a_matrix_.value_ = np.array(model["values"], dtype=np.float64)
    if np.isfinite(bound):  # most meshes fall to the relaxation
        relaxed = _run(highspy, lp)
        if relaxed is None or float(np.dot(lp.col_cost_, relaxed)) >= bound:
            return None
    kinds = [highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger]
    lp.integrality_ = [kinds[flag] for flag in model["integrality"]]
    columns = _run(highspy, lp)
    if columns is None or float(np.dot(lp.col_cost_, columns)) >= bound:
        return None
    return columns


def _run(highspy: Any, lp: Any) -> list[float] | None:
    """An optimal solution, the same in every run; None if infeasible."""
    solver = highspy.Highs()
    solver.silent()
    options = {"threads": 1, "random_seed": 0, "mip_rel_gap": _GAP, "mip_abs_gap": _GAP, "time_limit": _MESH_SECONDS}
    for option, value in options.items():
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        return [float(value) for value in solver.getSolution().col_value]
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return None
    raise RuntimeError(f"HiGHS stopped without an answer: {solver.modelStatusToString(status)}")


def _mesh_utils(shape: Mapping[str, int], slice: str) -> tuple[list[int] | None, list[list[int]] | None, bool]:
    """Devices and coordinates by logical rank in the order of jax's mesh_utils, and whether that splits dimensions."""
    description = json.loads(_core.slice_json(slice))
    sizes, cores = description["dims"], description["cores_per_chip"]
    for split in (False, True):
        try:
            coordinates = _core.mesh_utils_order(json.dumps(dict(shape)), slice, split)
        except Infeasible:
            continue
        chips = [int(np.ravel_multi_index(at[: len(sizes)], sizes)) for at in coordinates]
        cores_at = [at[len(sizes)] if cores > 1 else 0 for at in coordinates]
        return [chip * cores + core for chip, core in zip(chips, cores_at, strict=True)], coordinates, split
    return None, None, True


def describe(candidate: Mapping[str, Any]) -> str:
    """One line: mesh, weight rules, attention."""
    mesh = " x ".join(f"{axis['name']} {axis['size']}" for axis in candidate["mesh"] if axis["size"] > 1)
    rules = ", ".join(
        f"{axis} on {'+'.join(on)}"
        for axis, on in candidate["rules"].items()
        if on and (axis not in ("batch", "sequence") or (axis == "batch" and on != ["data"]))
    )
    return "; ".join(part for part in (mesh, rules, candidate["attention"]) if part)


def table(workloads: Iterable[Workload]) -> Iterable[str]:
    """Rows of docs/baselines.md, one a workload."""
    yield (
        "| workload | expert, by rule | M̂ GiB | Alpa-style | memory GiB, its account | step s, its account "
        "| comm. + reshard s | without rules s | solved in s |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for workload in workloads:
        request = json.loads(workload.request_json)
        ruled = expert(request, workload.slice)
        hbm = json.loads(_core.slice_json(workload.slice))["hardware"]["hbm_bytes"]["value"]
        first = next((m for m in ruled if m.memory_bytes <= hbm), None)
        left = f"{describe(first.candidate)}{_split(first)} | {first.memory_bytes / 2**30:.2f}" if first else "none |"
        program = propagated(workload.request_json)
        started = time.monotonic()
        try:
            plan = alpa(request, workload.slice, program=program)
        except Infeasible as error:
            yield f"| {workload.name} | {left} | {error} | | | | | |"
            continue
        elapsed = time.monotonic() - started
        seconds = plan.seconds
        free = free_seconds(request, workload.slice, program=program)
        yield (
            f"| {workload.name} | {left} | {describe(plan.candidate)}{_split(plan)} | {plan.memory_bytes / 2**30:.2f} "
            f"| {seconds['total']:.3f} | {seconds['communication'] + seconds['reshard']:.3f} | {free:.3f} "
            f"| {elapsed:.1f} |"
        )


def _split(member: Baseline) -> str:
    if member.devices is None:
        return " (no device order)"
    return " (split axes)" if member.split_physical_axes else ""


def main() -> int:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help="for example v5e:4x4:480:21; all eighteen by default")
    options = parser.parse_args()
    chosen = []
    for name in options.workloads:
        slice_name, height, frames = name.rsplit(":", 2)
        chosen.append(Workload(slice_name, int(height), int(frames)))
    for row in table(chosen or all_workloads()):
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
