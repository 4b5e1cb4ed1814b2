"""SimGrid's order, cycles lent between programs, and the attention kernel by the compiler's own schedule."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aoizora import _core
from aoizora.compiler.queue import WorkerQueue
from aoizora.evaluation import fidelity, kernels, sweep
from aoizora.evaluation.fidelity import Pool, Row, mean, spearman
from aoizora.evaluation.sections.context import NOTHING, Context, describe, need_code
from aoizora.evaluation.sections.pruning import comparable
from aoizora.evaluation.sweep import Workload
from aoizora.evaluation.tables import number, percent, span, table


def cycles_lent(context: Context) -> str:
    """What cycles of code-generated programs say of these, and what they change when they are lent to all."""
    rows = []
    apart_of_all: list[float] = []
    for pool in context.pools():
        if context.compile:
            need_code(context, pool)
        known, programs = fidelity.code_cycles(context.pricer, [pool.workload])
        if not programs:
            continue
        lent = fidelity.load(context.pricer, pool.workload, known=known, limit=max(pool.kept, 1), progress=context.say)
        plain = {row.signature: row for row in pool.rows}
        a, b, shares = [], [], []
        for row in lent.fitting:
            before = {p.devices: p.step_seconds for p in plain[row.signature].placed}
            for placed in row.placed:
                if placed.devices in before:
                    a.append(before[placed.devices])
                    b.append(placed.step_seconds)
            shares.append(row.lent)
        first, second = fidelity.plan_of(_first(pool, len(lent.rows))), fidelity.plan_of(lent)
        same = "–"
        if first is not None and second is not None:
            same = "same" if first.row.signature == second.row.signature else describe(second.row.candidate)
        change = [y / x - 1 for x, y in zip(a, b, strict=True)]
        own = fidelity.load(context.pricer, pool.workload, rung="code", progress=context.say)
        apart = [c for row in own.fitting if (c := _by_own_cycles(plain[row.signature], row)) is not None]
        apart_of_all += apart
        rows.append(
            [
                pool.workload.name, str(programs), _percents(apart), str(len(known)), percent(mean(shares)),
                number(spearman(a, b)), _percents(change), same,
            ]
        )  # fmt: skip
    if not rows:
        return "No code-generated program is stored.\n"
    caption = (
        "The HLO passes print no cycles; code generation does. Block: by a program's own cycles, over what it takes "
        f"without them, under the placement best without; {percent(mean([abs(c) for c in apart_of_all]))} off on "
        f"average over {len(apart_of_all)} programs that fit. Lent: cycles of the stored code-generated programs of a "
        "workload, lent to the survivors' programs by fingerprint (opcode tree of the fused computation with "
        "shapes and layouts, without names and metadata; `aoizora/planner/cycles.h`). Coverage: of the "
        "survivors' fusions. ρ: Spearman of Q2 with lent cycles and without, over all pairs.\n"
    )
    header = [
        "workload",
        "programs",
        "block changes by",
        "instructions known",
        "coverage",
        "ρ",
        "lent, step changes by",
        "plan with lent cycles",
    ]
    return "\n".join([caption, table(header, rows)])


def _percents(changes: list[float]) -> str:
    return f"{span([100 * change for change in changes])} %" if changes else "–"


def _by_own_cycles(plain: Row, own: Row) -> float | None:
    """How much more a block takes by the compiler's cycles than by the passes; None where the passes' does not fit."""
    if not plain.placed:
        return None
    seconds = {placed.devices: placed.block_seconds for placed in own.placed}
    return seconds[plain.best.devices] / plain.best.block_seconds - 1


def _first(pool: Pool, count: int) -> Pool:
    return Pool(pool.workload, pool.rows[:count], pool.shardings, pool.of, pool.rung, pool.simulated)


def _what_if(numbers: dict[str, float]) -> dict[str, dict[str, float]]:
    """Other cycles of the kernel: 2 x 2 x 512 x 512 x 128 FLOP on four 128 x 128 units, two FLOP each a cycle; and its
    whole text every step, what only a row's first and last step run too."""
    return {
        "matrix units alone": {"product": 1024.0, "step": 0.0, "row": 0.0},
        "whole text each step": {**numbers, "step": numbers["step"] + numbers["row"], "row": 0.0},
    }


def _kernel_cycles() -> dict[str, float]:
    hardware = json.loads(_core.slice_json("v5e:2x2"))["hardware"]
    return {name: hardware[f"attention_{name}_cycles"]["value"] for name in ("product", "step", "row")}


def attention_kernel(context: Context) -> str:
    """What the compiler's schedule of the attention kernel says, and what it changes."""
    others = _what_if(_kernel_cycles())
    rows = []
    for pool in context.pools():
        plan = fidelity.plan_of(pool)
        if plan is None:
            continue
        cells = [pool.workload.name]
        for numbers in others.values():
            other = _with_kernel(context, pool.workload, numbers)
            times = {row.signature: row.best.step_seconds for row in other.fitting}
            common = [row for row in pool.fitting if row.signature in times]
            correlation = spearman([times[r.signature] for r in common], [r.best.step_seconds for r in common])
            changed = fidelity.plan_of(other)
            assert changed is not None
            same = changed.row.signature == plan.row.signature
            cells += [
                number(correlation),
                percent(changed.placed.step_seconds / plan.placed.step_seconds - 1),
                "same" if same else describe(changed.row.candidate),
            ]
        rows.append(cells)
    if not rows:
        return NOTHING
    caption = (
        "Q2 takes the attention kernel's cycles from the compiler's own instruction schedule (libtpu's, compiled "
        "here): bundles a grid step issues, one a cycle, and what only the first and the last step of a row issue on "
        "top. The model is the closed form of docs/topology.md.\n"
    )
    effect = (
        "What other cycles would change, over the shardings of a workload at their best placement, all predicted: "
        "Spearman's ρ between the two orders, how much longer the plan's step would be, and the plan.\n"
    )
    counted = table(["block of queries x keys", "a step", "model", "a row", "model"], _counted(context))
    header = ["workload", *(f"{what}, {name}" for name in others for what in ("ρ", "step", "plan"))]
    return "\n".join([caption, counted, effect, table(header, rows)])


def _with_kernel(context: Context, workload: Workload, numbers: dict[str, float]) -> Pool:
    with TemporaryDirectory() as folder:
        descriptor = Path(folder) / "slice.json"
        hardware = {f"attention_{k}_cycles": {"value": value, "source": "what if"} for k, value in numbers.items()}
        descriptor.write_text(json.dumps({"base": workload.slice, "hardware": hardware}), encoding="utf-8")
        return fidelity.load(context.pricer, workload, slice_name=str(descriptor), progress=context.say)


def _counted(context: Context) -> list[list[str]]:
    """Cycles by kernel, counted and by the model; those that are neither stored nor may be compiled are left out."""
    product, step, row = _kernel_cycles().values()
    rows = []
    for done, (name, shape) in enumerate(kernels.SHAPES.items()):
        key = f"cycles {shape} {WorkerQueue.compiler_versions()}"
        found = context.pricer.kept(key)
        if found is None and context.compile:
            counted = kernels.cycles(shape)
            found = [counted.step, counted.row]
            context.pricer.keep(key, found)
            context.say("attention kernels", done + 1, len(kernels.SHAPES))
        if found is not None:
            block = shape.query_block * (shape.key_block / 512**2 * product + step)
            rows.append([name, f"{found[0]:,}", f"{block:,.0f}", f"{found[1]:,}", f"{shape.query_block * row:,.0f}"])
    return rows or [["not compiled", "–", "–", "–", "–"]]


SIMGRID_SECONDS = 600


def simgrid(context: Context) -> str:
    """Best and worst placement of seeded shardings, ordered by SimGrid."""
    rows = simgrid_rows(context)
    if not rows:
        return "SimGrid's judge was not built where this was written (`make judge` builds it), or nothing is stored.\n"
    agreed = sum(longer > 0 for *_, longer in rows)
    caption = (
        "The placements Q2 likes best and least, of seeded shardings whose placements spread by more than 1 %: how "
        "much longer the worst one takes. SimGrid times the same schedule (three layers) by its own expansion of "
        "collectives, routes and sharing; it shares the reader and the times of compute. SimGrid has the two in "
        f"Q2's order in {agreed} of {len(rows)}.\n"
    )
    header = ["workload", "sharding", "Q2", "simulated", "SimGrid"]
    cells = [[workload, sharding, *map(percent, times)] for workload, sharding, *times in rows]
    return "\n".join([caption, table(header, cells)])


def simgrid_rows(context: Context) -> list[tuple[str, str, float, float, float]]:
    """Workload, sharding, and how much longer Q2's worst placement takes than its best: by Q2, simulated, SimGrid's."""
    if context.judge is None:
        return []
    pools = [pool for slice_name in sweep.SLICES for pool in comparable(context, slice_name)]
    rows = []
    for pool, row in fidelity.spreading_sample(pools):
        best, worst = row.best, max(row.placed, key=lambda p: p.block_seconds)
        times = _simgrid_times(context, pool.workload, row.candidate, [list(best.devices), list(worst.devices)])
        if times is not None:
            simulated = (worst.simulated_seconds or 0.0) / (best.simulated_seconds or math.inf) - 1
            names = pool.workload.name, describe(row.candidate)
            rows.append((*names, worst.step_seconds / best.step_seconds - 1, simulated, times[1] / times[0] - 1))
    return rows


def _simgrid_times(
    context: Context, workload: Workload, candidate: dict[str, Any], devices: list[list[int]]
) -> list[float] | None:
    """Seconds of the proxy under given placements, by SimGrid."""
    judge = context.judge
    assert judge is not None

    def run(answer: dict[str, Any]) -> Any:
        cases = []
        for order in devices:
            schedule = _core.schedule(
                answer["text"], workload.table_json, json.dumps(candidate), workload.slice, order, workload.layers,
                "passes",
            )  # fmt: skip
            cases.append({"schedule": json.loads(schedule), "layers": sweep.PROXY_LAYERS})
        done = subprocess.run(
            [judge], input=json.dumps({"model": "CM02", "cases": cases}), capture_output=True, text=True,
            timeout=SIMGRID_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{judge} failed: {done.stderr.strip()[:300]}")
        return [result["step_seconds"] for result in json.loads(done.stdout)["results"]]

    digest = hashlib.sha256(judge.read_bytes()).hexdigest()
    name = f"simgrid {workload.name} {json.dumps(candidate, sort_keys=True)} {devices} {digest}"
    key = context.pricer.key(workload, candidate, "passes")
    result = context.pricer.derive([(name, key, run)], f"{workload.name}, SimGrid", context.say)[0]
    return None if result is None else [float(value) for value in result]
