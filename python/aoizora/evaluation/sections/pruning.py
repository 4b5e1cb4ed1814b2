"""Figure 8 and Table 3: what the pruning keeps, and how faithful the two scores are."""

from __future__ import annotations

from collections.abc import Sequence

from aoizora.evaluation import fidelity, plots, sweep, tables
from aoizora.evaluation.fidelity import Fidelity, Pool, mean
from aoizora.evaluation.sections.context import NOTHING, SLICE_NAMES, Context, workloads
from aoizora.evaluation.tables import beside, number, percent, span, table


def figure_8(context: Context) -> str:
    """What the pruning keeps."""
    panels, rows = [], []
    for slice_name in sweep.SLICES:
        points: list[tuple[float, float, bool]] = []
        kept = total = 0
        for pool in comparable(context, slice_name):
            best = min(row.simulated_best for row in pool.fitting)
            count = len(pool.rows)
            for row in pool.fitting:
                points.append(((row.rank + 0.5) / count, row.simulated_best / best, row.rank < pool.kept))
            found = fidelity.fidelity(pool)
            kept += bool(found and found.top_1_kept)
            total += 1
        if points:
            panels.append((f"{SLICE_NAMES[slice_name]} ({total} workloads)", points))
            near = [y for _, y, keep in points if keep]
            rows.append([SLICE_NAMES[slice_name], str(len(points)), f"{kept}/{total}", span([min(near), max(near)], 2)])
    if not panels:
        return NOTHING
    path, shown = context.plot("figure8")
    plots.pruning(path, panels, fidelity.KEPT_FRACTION)
    caption = (
        "Every sharding that fits: its percentile by Q1 in its workload, and its best placement's simulated step "
        "over the best of the workload. Green: the first 15 %; blue: kept by the planner (15 % of the logical "
        "shardings, at least 12). Simulated; the paper's is measured.\n"
    )
    header = ["slice", "shardings", "best kept (paper 6/6 each)", "kept ones over the best"]
    return "\n".join([caption, shown, table(header, rows)])


def comparable(context: Context, slice_name: str) -> list[Pool]:
    """Pools that are whole, with all attention kinds or else with gathered keys alone; simulated."""
    found = []
    for pool in context.pools(w for w in workloads() if w.slice == slice_name):
        if not pool.simulated:
            continue
        if pool.whole:
            found.append(pool)
        elif (gathered := pool.only("gathered")).whole:
            found.append(gathered)
    return found


def fidelities(context: Context) -> list[Fidelity]:
    """Of every workload with a whole pool."""
    found = [fidelity.fidelity(pool) for slice_name in sweep.SLICES for pool in comparable(context, slice_name)]
    return [one for one in found if one is not None]


def table_3(context: Context) -> str:
    """Spearman, recall and regret."""
    found = fidelities(context)
    rows = []
    for slice_name, height, members in fidelity.groups(found):
        paper = tables.FIDELITY[slice_name, height]
        recall = f"{sum(f.top_1_kept for f in members)}/{len(members)}"
        rows.append(
            [
                SLICE_NAMES[slice_name],
                f"{height}p",
                beside(number(mean(f.q1 for f in members)), number(paper[0])),
                beside(number(mean(f.q2 for f in members)), number(paper[1])),
                beside(recall, paper[2]),
                percent(max((f.regret for f in members), default=None), 2),
            ]
        )
    header = ["slice", "size", "Spearman before compile (Q1)", "after compile (Q2)", "best kept", "largest regret"]
    detail = [
        [
            f"{SLICE_NAMES[f.workload.slice]} {f.workload.height}p {f.workload.frames}",
            f.of, f"{f.answered}/{f.shardings}", str(f.fitting), str(f.pairs), number(f.q1), number(f.q2),
            f"{f.best_rank + 1} of {f.kept} kept", percent(f.regret, 2),
        ]
        for f in found
    ]  # fmt: skip
    detail_header = [
        "workload",
        "attention",
        "compiled",
        "fit",
        "pairs",
        "Q1",
        "Q2",
        "rank of the best by Q1",
        "regret",
    ]
    caption = (
        "Spearman's rank correlation with the simulated order, inside each workload, then averaged; Q1 with a "
        "sharding's best placement, Q2 over all pairs. Simulated; the paper's reference is measured. The "
        "simulation shares the HLO reader and the times of compute with Q2, not how collectives are timed, overlap "
        "or contend. Regret: simulated step of the plan, the least Q2 among survivors, over the best pair's; of Q2 "
        "within half a percent the planner prefers less memory (docs/plan-format.md). Workloads whose pool is not "
        "whole yet are left out; where only gathered keys are whole, the planner is the one without Ulysses.\n"
    )
    return "\n".join([caption, table(header, rows), table(detail_header, detail), placements_alone(found)])


def placements_alone(found: Sequence[Fidelity]) -> str:
    """Q2 over the placements of one sharding."""
    rows = []
    for slice_name, height, members in fidelity.groups(found):
        values = [v for f in members for v in f.alone]
        averaged = mean(mean(f.alone) for f in members)
        low = f"{sum(v >= 0.9 for v in values)}/{len(values)}" if values else "–"
        least = number(min(values, default=None))
        rows.append([SLICE_NAMES[slice_name], f"{height}p", str(len(values)), number(averaged), low, least])
    header = ["slice", "size", "shardings", "Spearman over placements alone", "at least 0.9", "least"]
    caption = "\nQ2 over the placements of one sharding alone, for those that spread by more than 1 % (simulated):\n"
    return "\n".join([caption, table(header, rows)])
