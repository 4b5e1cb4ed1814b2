"""Figure 7 and Table 2: our plan beside what an expert and an Alpa-style search deploy."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

from aoizora.errors import Infeasible
from aoizora.evaluation import fidelity, plots, sweep, tables
from aoizora.evaluation.sections.context import NOTHING, SLICE_NAMES, Context, stored_form, workloads
from aoizora.evaluation.sweep import Workload
from aoizora.evaluation.tables import beside, number, table

BASELINES = (("rule", "expert by rule"), ("search", "expert by search"), ("alpa", "Alpa-style search"))


def deployments(context: Context, workload: Workload) -> dict[str, float | None]:
    """Simulated seconds of a step of each baseline, each on the device order of jax's mesh_utils.

    rule: the first member of the stock family, in the order of the written rule, that the compiler fits; search: the
    fastest of all members; alpa: the plan of the ILP. None: no member fits; absent: not stored.
    """
    from aoizora.evaluation import baselines

    found: dict[str, float | None] = {}
    request = json.loads(workload.request_json)
    family = [member for member in baselines.expert(request, workload.slice) if member.devices is not None]
    members = [stored_form(workload, member.candidate) for member in family]
    context.ask(workload, [sweep.job(candidate, "passes") for candidate in members], "baselines, HLO passes")
    times = [(member.rank, _deployed(context, workload, member.candidate, member.devices or [])) for member in family]
    if all(seconds is not None for _, seconds in times):
        ruled = [seconds for rank, seconds in times if rank is not None and seconds and math.isfinite(seconds)]
        found["rule"] = ruled[0] if ruled else None
        fastest = min((seconds for _, seconds in times if seconds is not None), default=math.inf)
        found["search"] = fastest if math.isfinite(fastest) else None
    plan = _alpa(context, workload)
    if plan is not None:
        seconds = _deployed(context, workload, *plan) if plan[1] else math.inf
        if seconds is not None:
            found["alpa"] = seconds if math.isfinite(seconds) else None
    return found


def _alpa(context: Context, workload: Workload) -> tuple[dict[str, Any], list[int]] | None:
    """Candidate and devices of the Alpa-style plan; no devices where its own account finds none that fits; None where
    the program it needs is not stored."""
    from aoizora.evaluation import baselines

    def run(answer: dict[str, Any]) -> Any:
        try:
            plan = baselines.alpa(json.loads(workload.request_json), workload.slice, program=answer["text"])
        except Infeasible:
            return [{}, []]
        return [plan.candidate, plan.devices or []]

    # Operators depend on no candidate: any propagated program of the request will do.
    key = context.pricer.key(workload, workload.candidates[0], "propagate")
    result = context.pricer.derive([(f"alpa {workload.name}", key, run)], f"{workload.name}, ILP", context.say)[0]
    return None if result is None else (dict(result[0]), list(result[1]))


def _deployed(context: Context, workload: Workload, candidate: dict[str, Any], devices: list[int]) -> float | None:
    """Simulated seconds of a step; infinite where it does not fit, None where it is not stored."""
    candidate = stored_form(workload, candidate)
    context.ask(workload, [sweep.job(candidate, "passes")], "baselines, HLO passes")

    def run(answer: dict[str, Any]) -> Any:
        priced = fidelity.price(answer, workload, candidate)
        if priced["outcome"] != "ok":
            return "does not fit"
        return context.simulate(answer["text"], workload, candidate, [devices], "passes")[0][0]

    key = context.pricer.key(workload, candidate, "passes")
    name = f"deployed {workload.name} {json.dumps(candidate, sort_keys=True)} {devices}"
    result = context.pricer.derive([(name, key, run)], f"{workload.name}, baselines", context.say)[0]
    return math.inf if result == "does not fit" else result


def figure_7(context: Context) -> str:
    """One step of ours and of the baselines."""
    steps = step_seconds(context)
    if not steps:
        return NOTHING
    names = [f"{SLICE_NAMES[w.slice]} {w.height}p{w.frames}" for w, _ in steps]
    series = [
        (label, colour, [found.get(key) for _, found in steps])
        for key, label, colour in (
            ("search", "expert, best member", plots.OTHER),
            ("alpa", "Alpa-style search", plots.JUDGE),
            ("ours", "ours", plots.OURS),
        )
    ]
    labels = []
    for _, found in steps:
        slower = max((v for k in ("search", "alpa") if (v := found.get(k)) is not None), default=None)
        ours = found.get("ours")
        labels.append(f"{slower / ours:.2f}x" if slower and ours else "")
    path, shown = context.plot("figure7")
    plots.bars(path, names, series, "seconds a step", logarithmic=True, labels=labels)
    rows = [
        [n, *(number(found.get(k)) for k in ("ours", *(name for name, _ in BASELINES)))]
        for n, (_, found) in zip(names, steps, strict=True)
    ]
    caption = (
        "Seconds of one denoising step, simulated; labels: the slower baseline over ours. The paper's figure is "
        "measured and prints no seconds; its ratios are Table 2.\n"
    )
    return "\n".join([caption, shown, table(["workload", "ours s", *(f"{label} s" for _, label in BASELINES)], rows)])


def step_seconds(context: Context) -> list[tuple[Workload, dict[str, float | None]]]:
    found: list[tuple[Workload, dict[str, float | None]]] = []
    for workload in workloads():
        pool = context.pool(workload)
        plan = fidelity.plan_of(pool)
        if plan is None:
            continue
        ours = plan.placed.simulated_seconds
        found.append((workload, {"ours": ours, **deployments(context, workload)}))
    return found


def table_2(context: Context) -> str:
    """Speed-ups over the baselines."""
    steps = {(w.slice, w.height, w.frames): found for w, found in step_seconds(context)}
    rows = []
    ratios: dict[str, list[float]] = {name: [] for name, _ in BASELINES}
    for height in sweep.SIZES:
        for frames in sweep.FRAMES:
            cells = []
            for slice_name in sweep.SLICES:
                found = steps.get((slice_name, height, frames), {})
                values = []
                for name, _ in BASELINES:
                    ours, other = found.get("ours"), found.get(name)
                    if ours and other:
                        ratios[name].append(other / ours)
                        values.append(number(other / ours, 2))
                    else:
                        values.append("infeasible" if name in found else "–")
                existing, searched = tables.SPEEDUPS[slice_name, height, frames]
                cells.append(beside(f"{values[1]}, by rule {values[0]}", number(existing, 2)))
                cells.append(beside(values[2], number(searched, 2, "infeasible")))
            rows.append([f"{height}p {frames}", *cells])
    header = ["workload", *(f"{SLICE_NAMES[s]} {n}" for s in sweep.SLICES for n in ("expert", "Alpa-style"))]
    means = "; ".join(
        f"{dict(BASELINES)[name]}: geometric mean {statistics.geometric_mean(values):.2f}, largest "
        f"{max(values):.2f}, least {min(values):.2f}"
        for name, values in ratios.items()
        if values
    )
    caption = (
        f"Speed-up of our plan over each baseline, simulated (paper: measured, geometric mean 1.09 and 1.11, largest "
        f"1.42 and 1.37). {means or 'No baseline is stored.'}\n"
    )
    return "\n".join([caption, table(header, rows)])
