"""Figures 4 and 9 and the coverage of the store: what the compiler takes."""

from __future__ import annotations

import statistics

from aoizora.evaluation import plots, sweep, tables
from aoizora.evaluation.sections.context import NOTHING, SLICE_NAMES, Context, code_seconds, workloads
from aoizora.evaluation.tables import beside, span, table


def figure_4(context: Context) -> str:
    """Seconds of each rung of the compiler."""
    rows, names = [], []
    series: dict[str, list[float | None]] = {"propagate": [], "passes": [], "code": []}
    for slice_name in sweep.SLICES:
        times: dict[str, list[float]] = {rung: [] for rung in series}
        for pool in context.pools(w for w in workloads() if w.slice == slice_name):
            times["propagate"] += [row.propagate_seconds for row in pool.rows]
            times["passes"] += [row.compile_seconds for row in pool.rows if row.outcome in ("ok", "over_budget")]
            times["code"] += code_seconds(context, pool.workload)
        names.append(SLICE_NAMES[slice_name])
        for rung in series:
            series[rung].append(statistics.median(times[rung]) if times[rung] else None)
        rows.append(
            [SLICE_NAMES[slice_name]]
            + [f"{statistics.median(t):.2f} ({len(t)})" if (t := times[rung]) else "–" for rung in series]
        )
    path, shown = context.plot("figure4")
    plots.bars(
        path, names,
        [("lowering and Shardy", plots.JUDGE, series["propagate"]), ("HLO passes", plots.OURS, series["passes"]),
         ("whole compile", plots.OTHER, series["code"])],
        "seconds, median", logarithmic=True,
    )  # fmt: skip
    caption = (
        "Seconds of one candidate in each rung of the compiler, median (number of them); measured on the machine "
        "that filled the store, two compiler processes at once. The paper: O(0.1) s or less for lowering and "
        "Shardy, O(1) s for a whole compile.\n"
    )
    header = ["slice", "lowering and Shardy s (paper ≤ O(0.1))", "HLO passes s", "whole compile s (paper O(1))"]
    return "\n".join([caption, shown, table(header, rows)])


def figure_9(context: Context) -> str:
    """What planning costs."""
    rows, names = [], []
    parts: dict[str, list[float]] = {"stage 1": [], "HLO passes": [], "code generation": []}
    for slice_name in sweep.SLICES:
        first, total = [], []
        for pool in context.pools(w for w in workloads() if w.slice == slice_name):
            survivors = pool.rows[: pool.kept]
            if any(row.outcome == "missing" for row in survivors):
                continue
            code = code_seconds(context, pool.workload)
            times = (
                sum(row.propagate_seconds for row in pool.rows) / 2,
                sum(row.compile_seconds for row in survivors) / 2,
                statistics.median(code) if code else 0.0,  # the plan's own, verified
            )
            for name, seconds in zip(parts, times, strict=True):
                parts[name].append(seconds)
            names.append(f"{SLICE_NAMES[slice_name]} {pool.workload.height}p{pool.workload.frames}")
            first.append(times[0])
            total.append(sum(times))
        if first:
            paper = tables.PLANNING_SECONDS[slice_name]
            rows.append(
                [
                    SLICE_NAMES[slice_name],
                    str(len(first)),
                    beside(span(first, 0), span([float(v) for v in paper[0]], 0)),
                    beside(span(total, 0), span([float(v) for v in paper[1]], 0)),
                ]
            )
    if not rows:
        return NOTHING
    path, shown = context.plot("figure9")
    colours = (plots.JUDGE, plots.OURS, plots.OTHER)
    plots.stacked(path, names, [(n, c, v) for (n, v), c in zip(parts.items(), colours, strict=True)], "seconds")
    caption = (
        "Seconds that the paper's three stages take in the compiler: every candidate through Shardy, the survivors "
        "through the HLO passes, the plan through code generation where some is stored, over two processes. The "
        "planner's bounds leave most of it out (docs/plan-format.md: counts and times of a plan). Measured on the "
        "machine that filled the store, which had other work. The paper's are measured on its host.\n"
    )
    return "\n".join([caption, shown, table(["slice", "workloads", "stage 1 s", "total s"], rows)])


def coverage(context: Context) -> str:
    """What is stored."""
    rows = []
    for workload in workloads():
        pool = context.pool(workload)
        total = len(workload.candidates)
        counts = {
            name: sum(r.outcome == name for r in pool.rows) for name in ("over_budget", "out_of_memory", "refused")
        }
        rows.append(
            [
                workload.name, str(total), str(len(pool.rows)), str(pool.answered), str(len(pool.fitting)),
                str(sum(len(row.placed) for row in pool.fitting)),
                ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in counts.items() if n) or "–",
                str(len(code_seconds(context, workload))),
            ]
        )  # fmt: skip
    header = ["workload", "candidates", "after Shardy", "after HLO passes", "fit", "pairs", "not", "code-generated"]
    return "\n".join(["What the store held when this was written.\n", table(header, rows)])
