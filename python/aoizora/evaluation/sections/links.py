"""Figures 2, 3 and 6: what a placement does to one sharding, to permutes and to one all-reduce."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aoizora import _core
from aoizora.evaluation import plots, sweep, tables
from aoizora.evaluation.sections.context import NOTHING, Context, device_ids, stored_form, workloads
from aoizora.evaluation.sweep import Workload
from aoizora.evaluation.tables import beside, number, percent, table
from aoizora.plan_file import ATTENTION_KINDS

SPREAD_MESH = [{"name": n, "size": s} for n, s in (("data", 2), ("fsdp", 1), ("context", 2), ("tensor", 2))]
SPREAD_RULES = {
    "batch": ["data"], "sequence": ["context"], "embed": ["context"], "heads": ["tensor"], "mlp": ["tensor"],
}  # fmt: skip


def figure_2(context: Context) -> str:
    """Placements of one sharding."""
    workload = next(w for w in workloads((81,)) if (w.slice, w.height) == ("v5e:2x4", 480))
    sizes = json.dumps({axis["name"]: axis["size"] for axis in SPREAD_MESH})
    active = [str(axis["name"]) for axis in SPREAD_MESH if axis["size"] != 1]
    found = json.loads(_core.distinct_axis_orders(sizes, workload.slice, active, []))["placements"]
    ids = device_ids(workload.slice)
    devices = [[ids[tuple(chip)] for chip in placement["coordinates"]] for placement in found]
    rows, bars, spreads = [], [], {}
    for attention in ATTENTION_KINDS:
        candidate = {
            "mesh": SPREAD_MESH, "rules": SPREAD_RULES, "attention": attention,
            "blocks": {"queries": 512, "keys": 512}, "compiler_options": {},
        }  # fmt: skip
        candidate = stored_form(workload, candidate)
        context.ask(workload, [sweep.job(candidate, "passes")], f"{attention}, HLO passes")
        values = _step_times(context, workload, candidate, devices)
        if values is None:
            continue
        for name, times in values.items():
            spreads[attention, name] = max(times) / min(times) - 1
        for k, placement in enumerate(found):
            cells = [number(values[name][k], 3) if name in values else "–" for name in ("q2", "half", "simulated")]
            rows.append([attention, placement["order"], *cells])
        colours = (plots.OURS, plots.JUDGE) if attention == "gathered" else (plots.SECOND, plots.SECOND_JUDGE)
        bars.append((f"Q2, {attention}", colours[0], values["q2"]))
        bars.append((f"simulated, {attention}", colours[1], values["simulated"]))
    if not rows:
        return NOTHING
    path, shown = context.plot("figure2")
    plots.bars(path, [f"p{k + 1}" for k in range(len(found))], bars, "seconds a step")
    measured = f"{tables.SPREAD_PERCENT} %"
    summary = [
        [
            attention,
            *(beside(percent(spreads.get((attention, name))), measured) for name in ("q2", "half", "simulated")),
        ]
        for attention in ATTENTION_KINDS
    ]
    caption = (
        "Seconds of a denoising step of Wan 2.1 14B, 480p, 81 frames, data 2 x context 2 x tensor 2 on v5e-8, "
        f"under the {len(found)} distinct placements (paper: 6). Predicted (Q2, at the links' nominal rate and at "
        "half of it) and simulated; the paper's spread is measured.\n"
    )
    return "\n".join(
        [
            caption,
            shown,
            table(["attention", "placement", "Q2 s", "Q2 at half the link rate s", "simulated s"], rows),
            table(["worst over best", "Q2", "Q2 at half the link rate", "simulated"], summary),
        ]
    )


def _step_times(
    context: Context, workload: Workload, candidate: dict[str, Any], devices: list[list[int]]
) -> dict[str, list[float]] | None:
    """Seconds of a step under given placements: q2, half (Q2 at half the link rate), simulated."""

    def run(answer: dict[str, Any]) -> Any:
        if answer["outcome"] != "ok":
            return None
        times: dict[str, list[float]] = {}
        for name, rate in (("q2", 1.0), ("half", 0.5)):
            times[name] = [
                json.loads(
                    _core.score(
                        answer["text"], workload.table_json, json.dumps(candidate), workload.slice, order,
                        workload.layers, "passes", rate,
                    )
                )["step_seconds"]
                for order in devices
            ]  # fmt: skip
        simulated = context.simulate(answer["text"], workload, candidate, devices, "passes")
        times["simulated"] = [step for step, _ in simulated]
        return times

    name = f"placements {workload.name} {json.dumps(candidate, sort_keys=True)} {devices}"
    key = context.pricer.key(workload, candidate, "passes")
    result = context.pricer.derive([(name, key, run)], "placements", context.say)[0]
    return result if result is None else dict(result)


_PERMUTE_BYTES = 64 * 2**20
_PERMUTES = (
    ("one hop along x", [(0, 4)], "alone"),
    ("one hop along y", [(0, 1)], "alone"),
    ("two hops along y", [(0, 2)], "alone"),
    ("three hops along y", [(0, 3)], "alone"),
    ("four hops, x and y", [(0, 7)], "alone"),
    ("two routes in two rows", [(0, 2), (4, 6)], "alone"),
    ("both ways over one wire", [(1, 2), (2, 1)], "alone"),
    ("two routes that share a link", [(0, 2), (1, 3)], "shared"),
)


def permute_text(pairs: Sequence[tuple[int, int]], size_bytes: int = _PERMUTE_BYTES) -> str:
    """A program of eight partitions that is one permute."""
    named = ",".join(f"{{{a},{b}}}" for a, b in pairs)
    array = f"bf16[{size_bytes // 2048},1024]{{1,0}}"
    return (
        "HloModule permute, is_scheduled=true, num_partitions=8\n\n"
        f"ENTRY %main (p: {array[:-5]}) -> {array[:-5]} {{\n  %p = {array} parameter(0)\n"
        f"  ROOT %moved = {array} collective-permute(%p), channel_id=1, source_target_pairs={{{named}}}\n}}\n"
    )


def figure_3(context: Context) -> str:
    """Permutes alone and together."""
    rows, names, ours, judged = [], [], [], []
    for name, pairs, kind in _PERMUTES:
        result = json.loads(_core.rank(permute_text(pairs), "v5e:2x4", json.dumps([["chip", 8]])))
        rate = _PERMUTE_BYTES / result["default"]["step_seconds"] / 1e9
        seconds = _core.collective(
            "collective-permute", json.dumps(pairs), float(_PERMUTE_BYTES), list(range(8)), "v5e:2x4"
        )
        simulated = _PERMUTE_BYTES / seconds / 1e9
        paper = f"about {tables.PERMUTE_ALONE:g}" if kind == "alone" else f"{tables.PERMUTE_SHARED}"
        rows.append([name, beside(f"{rate:.1f}", paper), beside(f"{simulated:.1f}", paper)])
        names.append(name)
        ours.append(rate)
        judged.append(simulated)
    path, shown = context.plot("figure3")
    levels = [("paper, isolated", tables.PERMUTE_ALONE), ("paper, shared links", tables.PERMUTE_SHARED)]
    plots.bars(path, names, [("Q2", plots.OURS, ours), ("simulated", plots.JUDGE, judged)], "GB/s", lines=levels)
    caption = (
        "Bandwidth of a permute of 64 MiB on v5e-8, by Q2's link model and by the simulation (computed; the "
        "paper's two levels are measured). Both levels are inputs of the model (docs/topology.md: a flow limit and "
        "a rate of permutes): this shows that they are reproduced, not that they are predicted. That hops do not "
        "matter and that only routes that share a directed link slow each other is the model's.\n"
    )
    return "\n".join([caption, shown, table(["routes", "Q2, GB/s each", "simulated, GB/s each"], rows)])


def all_reduce_text(rows: int, columns: int) -> str:
    """A program of eight partitions that is one all-reduce of bf16[rows,columns] between neighbouring ranks."""
    array = f"bf16[{rows},{columns}]{{1,0}}"
    return (
        "HloModule reduce, is_scheduled=true, num_partitions=8\n\n"
        "%add (a: bf16[], b: bf16[]) -> bf16[] {\n  %a = bf16[] parameter(0)\n  %b = bf16[] parameter(1)\n"
        "  ROOT %sum = bf16[] add(%a, %b)\n}\n\n"
        f"ENTRY %main (p: {array[:-5]}) -> {array[:-5]} {{\n  %p = {array} parameter(0)\n"
        f"  ROOT %reduced = {array} all-reduce(%p), channel_id=1, replica_groups=[4,2]<=[8], "
        "use_global_device_ids=true, to_apply=%add\n}\n"
    )


def figure_6(context: Context) -> str:
    """One all-reduce under a compact and a strided placement."""
    result = json.loads(
        _core.rank(all_reduce_text(2340, 13824), "v5e:2x4", json.dumps([["data", 2], ["context", 2], ["tensor", 2]]))
    )
    near, far = 1e3 * result["best"]["step_seconds"], 1e3 * result["worst_step_seconds"]
    payload = 2.0 * 2340 * 13824
    groups = {"compact": [[0, 1], [2, 3], [4, 5], [6, 7]], "strided": [[0, 2], [1, 3], [4, 6], [5, 7]]}
    simulated = [
        1e3 * _core.collective("all-reduce", json.dumps(g), payload, list(range(8)), "v5e:2x4") for g in groups.values()
    ]
    rows = [
        [name, *(beside(f"{value:.2f} ms", f"{paper} ms") for value in values)]
        for name, paper, values in (
            ("compact", tables.ALL_REDUCE_COMPACT_MS, (near, simulated[0])),
            ("strided", tables.ALL_REDUCE_STRIDED_MS, (far, simulated[1])),
        )
    ]
    ratios = (far / near, simulated[1] / simulated[0])
    rows.append(["strided over compact", *(beside(f"{ratio:.2f}", "2.00") for ratio in ratios)])
    path, shown = context.plot("figure6")
    measured: list[float | None] = [tables.ALL_REDUCE_COMPACT_MS, tables.ALL_REDUCE_STRIDED_MS]
    plots.bars(
        path,
        ["compact", "strided"],
        [("Q2", plots.OURS, [near, far]), ("simulated", plots.JUDGE, simulated), ("paper", plots.PAPER, measured)],
        "ms",
    )
    caption = (
        "One all-reduce of 64.7 MB (bf16[2340,13824]) between pairs on the tensor axis of data 2 x context 2 x "
        "tensor 2 on v5e-8: pairs on neighbouring chips, and pairs two chips apart, two of which share the links "
        "between them. Computed by the link model; the paper's are measured. The ratio comes out, the milliseconds "
        "do not: 9.66 ms would be 6.7 GB/s on a link of 45, slow enough to make the spread of Figure 2 several "
        "times what was measured there.\n"
    )
    return "\n".join([caption, shown, table(["placement", "Q2", "simulated"], rows)])
