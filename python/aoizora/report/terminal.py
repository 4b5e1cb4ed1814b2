"""A plan as text for people, at most 80 columns."""

from __future__ import annotations

import textwrap
from typing import Any

from aoizora.plan_file import Plan

WIDTH = 80
GIB = 1024.0**3


def table(header: list[str], rows: list[list[str]], left: int = 1) -> list[str]:
    """Columns aligned; the first `left` ones to the left, and the first cut so that a line fits."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    spare = WIDTH - sum(widths[1:]) - 2 * (len(header) - 1)
    widths[0] = max(8, min(widths[0], spare))
    lines = []
    for row in cells:
        first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 3] + "..."
        parts = [first.ljust(widths[0])]
        parts += [
            cell.ljust(width) if i + 1 < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row[1:], widths[1:], strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "-" * min(WIDTH, max(len(line) for line in lines)))
    return lines


def wrap(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def gib(number: float) -> str:
    return f"{number / GIB:.2f} GiB"


def title(plan: Plan) -> str:
    if plan.is_of_program:
        return f"{plan.data['program']['name']}, {plan.data['slice']['name']}"
    request = plan.request
    return (
        f"{request['model']}, {request['height']}x{request['width']}, {request['frames']} frames, "
        f"{plan.data['slice']['name']}"
    )


def unit(plan: Plan) -> str:
    """What is priced as a block: a whole program is one."""
    return "step" if plan.is_of_program else "block"


def gain_lines(plan: Plan) -> list[str]:
    """What the plan gains over deployments people run today, priced by the same Q2."""
    lines, what = [], unit(plan)
    for comparison in plan.data["comparisons"]:
        lines.append(f"  {comparison['name']}:")
        if comparison.get("allow_split_physical_axes"):
            lines += wrap("jax gives this order only with allow_split_physical_axes=True; its default raises", "    ")
        if "reason" in comparison:
            lines += wrap(comparison["reason"], "    ")
        else:
            theirs, ours = ms(comparison["passes_block_seconds"]), ms(plan.data["best"]["passes_block_seconds"])
            said = f"the plan {ours}: {_gained(comparison, what)}"
            if theirs == ours and abs(comparison["gain_percent"]) < 0.05:
                said = "the same as the plan"
            lines += wrap(f"{theirs} ms a {what} by the HLO passes, {said}", "    ")
    return lines


def _gained(comparison: dict[str, Any], what: str) -> str:
    if comparison["gain_percent"] < 0:  # even by the passes; memory or cycles decided (docs/plan-format.md)
        return f"{-comparison['gain_percent']:.1f} % more a step"
    return f"it gains {ms(comparison['gain_seconds_per_block'])} ms a {what}, {comparison['gain_percent']:.1f} % a step"


def idle_lines(plan: Plan) -> list[str]:
    """Says so where a mesh axis of the plan divides nothing."""
    idle = plan.data["best"].get("idle_axes", [])
    if not idle:
        return []
    return wrap(f"mesh axis {', '.join(idle)} divides no tensor: no sharding without an idle axis fits in HBM")


def sharding_lines(plan: Plan) -> list[str]:
    shape = ", ".join(f"{axis} {size}" for axis, size in plan.mesh_shape.items())
    lines = [f"  mesh       {shape}"]
    for axis, mesh_axes in plan.axis_rules.items():
        if mesh_axes:
            lines.append(f"  {axis:<10} on {', '.join(mesh_axes)}")
    lines += idle_lines(plan)
    blocks = plan.data["kernel_blocks"]
    if blocks:
        lines.append(f"  attention  {plan.data['attention']}, kernel blocks {blocks['queries']} x {blocks['keys']}")
    for option, value in plan.data["compiler_options"].items():
        lines.append(f"  compile with {option}={value}")
    return lines


def placement_lines(plan: Plan) -> list[str]:
    placement = plan.data["best"]["placement"]
    lines = [f"  axis order {placement['order']}"]
    chips = "  ".join("(" + ",".join(str(c) for c in chip) + ")" for chip in placement["coordinates"])
    lines += wrap("chips in mesh order: " + chips)
    placements = plan.data["placements"]
    if placements["distinct"] > 1:
        lines.append(
            f"  best of {placements['distinct']} distinct placements; the worst takes "
            f"{ms(placements['worst_block_seconds'])} ms a {unit(plan)}"
        )
    return lines


def copy_wait_seconds(predicted: dict[str, Any]) -> float:
    """Of a block, what is neither compute nor exposed communication: the core waits for copies between memories."""
    block = predicted["block"]
    rest = predicted["block_seconds"] - block["compute"]["total_seconds"] - block["exposed_communication_seconds"]
    return abs(float(rest))  # none is a rounding error, of either sign


def time_rows(predicted: dict[str, Any], what: str = "block") -> list[list[str]]:
    block = predicted["block"]
    compute = block["compute"]
    total = predicted["block_seconds"]
    parts = [
        ("matrix products", compute["matmul_seconds"]),
        ("attention kernel", compute["attention_seconds"]),
        ("  of it on padding", compute["padding_seconds"]),
        ("relayout copies", compute["relayout_seconds"]),
        ("other", compute["other_seconds"]),
        ("exposed communication", block["exposed_communication_seconds"]),
        ("  of it contention", block["contention_seconds"]),
        ("copy wait", copy_wait_seconds(predicted)),
    ]
    rows = [[name, ms(seconds), f"{100 * seconds / total:.1f} %"] for name, seconds in parts if total > 0]
    return [*rows, [f"one {what}", ms(total), "100.0 %"]]


def collective_rows(predicted: dict[str, Any]) -> list[list[str]]:
    """One row a kind and payload, most time first; equal ones are counted together."""
    groups: dict[tuple[str, float, float], list[float]] = {}
    for c in predicted["block"]["collectives"]:
        key = (c["kind"], c["bytes"], round(c["effective_bytes_per_second"]))
        row = groups.setdefault(key, [0, 0, 0, 0])
        row[0] += c["runs"]
        row[1] += c["seconds"] * c["runs"]
        row[2] += c["exposed_seconds"] * c["runs"]
        row[3] += c["contention_seconds"] * c["runs"]
    ordered = sorted(groups.items(), key=lambda item: (-item[1][1], item[0]))
    return [
        [kind, f"{runs:g}", f"{size / 1e6:.2f}", ms(seconds), ms(exposed), ms(contention), f"{rate / 1e9:.1f}"]
        for (kind, size, rate), (runs, seconds, exposed, contention) in ordered
    ]


# What `short` writes, and runner_rows.
SHORT_LEGEND = (
    "sharding: sizes of data/fsdp/context/tensor; which of them, by first letter, divide each weight axis; attention"
)
LEGEND = SHORT_LEGEND + ". ms: one block by the compiler's cycles; ms passes: without them, comparable for all rows"


def short(candidate: dict[str, Any], attention: bool = True) -> str:
    """A sharding in a few letters: "2/1/4/2 heads:t mlp:t gathered". Batch and sequence only where they are not on
    data and context; attention where there is one to choose for."""
    parts = ["/".join(str(axis["size"]) for axis in candidate["mesh"])]
    usual = {"batch": ["data"], "sequence": ["context"]}
    for axis, mesh_axes in candidate["rules"].items():
        if mesh_axes and usual.get(axis) != mesh_axes:
            parts.append(f"{axis}:{''.join(name[0] for name in mesh_axes)}")
    if attention:
        parts.append(candidate["attention"])
    if candidate["compiler_options"]:
        parts.append("windowed-off" if any("windowed" in name for name in candidate["compiler_options"]) else "options")
    return " ".join(parts)


def runner_rows(plan: Plan) -> list[list[str]]:
    rows = []
    for ranked in [plan.data["best"], *plan.data["runners_up"]]:
        predicted = ranked["predicted"]
        rows.append(
            [
                short(ranked["candidate"], not plan.is_of_program),
                ms(predicted["block_seconds"]),
                ms(ranked["passes_block_seconds"]),
                f"{ranked['hbm_bytes'] / GIB:.1f}",
                "yes" if ranked["verified"] else "no",
            ]
        )
        if predicted["rung"] == "passes":
            rows[-1][1] = "-"
    return rows


def when_lines(plan: Plan) -> list[str]:
    """How long the plan took to be chosen and to be proved, and what the proof said of the price."""
    lines = []
    times = plan.data.get("times")
    if times:
        lines = wrap(
            f"decided after {times['decision_seconds']:.1f} s, verified by the compiler after "
            f"{times['verified_seconds']:.1f} s"
        )
    best = plan.data["best"]
    if "rung_difference_percent" in best:
        lines += wrap(
            f"the compiler's cycles change the block by {best['rung_difference_percent']:+.1f} % against the "
            f"{ms(best['passes_block_seconds'])} ms it was chosen by"
        )
    return lines


def explain(plan: Plan) -> str:
    """The whole plan for people. Its first lines give the gain."""
    data = plan.data
    predicted = data["best"]["predicted"]
    lines = [f"Plan for {title(plan)}", "", "Gain over what people deploy (same cost model):"]
    lines += gain_lines(plan)
    if plan.is_of_program:
        lines += ["", f"Predicted: {ms(predicted['step_seconds'])} ms a step"]
    else:
        lines += ["", "aoizora export plan.json --to maxdiffusion prints the line for MaxDiffusion", ""]
        lines += [
            f"Predicted: {ms(predicted['block_seconds'])} ms a block, {predicted['step_seconds']:.3f} s a step, "
            f"{predicted['video_seconds']:.1f} s for {plan.request['steps']} steps"
        ]
    lines += [
        f"HBM: {gib(data['hbm']['bytes'])} of {gib(data['hbm']['limit_bytes'])} a device"
        + (f", {gib(data['hbm']['reserved_bytes'])} reserved" if data["hbm"]["reserved_bytes"] else ""),
        f"  ({data['hbm']['source']})",
        *when_lines(plan),
        "",
        "Sharding",
        *sharding_lines(plan),
        "",
        "Placement",
        *placement_lines(plan),
        "",
        "Why",
        *wrap(data["why"]),
    ]
    if data["half_rate_winner"]:
        lines += wrap("At half the links' rate another plan would win: " + data["half_rate_winner"])
    else:
        lines += wrap("The same plan wins at half the links' rate.")
    lines += ["", *table([f"time of one {unit(plan)}", "ms", "share"], time_rows(predicted, unit(plan)))]
    if predicted["block"]["collectives"]:
        header = ["collective", "runs", "MB", "ms", "exposed", "contend", "GB/s"]
        lines += ["", *table(header, collective_rows(predicted))]
    lines += ["", *table(["sharding", "ms", "ms passes", "GiB", "verified"], runner_rows(plan)), *wrap(LEGEND, "")]
    lines += ["", *table(["stage", "count", "s"], [[c["name"], f"{c['count']}", _seconds(c)] for c in data["counts"]])]
    lines += wrap(COMPILED, "")
    lines += ["", "Searched"]
    for searched in data["searched"]:
        lines += wrap(searched)
    for what, heading in (("lost", "Lost to a crash or a limit"), ("refused", "Refused by the compiler")):
        if data[what]:
            lines += ["", heading]
            for item in data[what]:
                lines += wrap(item)
    lines += ["", "Made with " + ", ".join(data["versions"])]
    return "\n".join(lines) + "\n"


# How "compiled and fitting" follows from the counts above it.
COMPILED = (
    "compiled and fitting: the survivors, and each that uses windowed einsum once more with it off; less those left "
    "out by the bound on Q2, those that do not fit and those that the compiler refused"
)


def _seconds(count: dict[str, Any]) -> str:
    return f"{count['seconds']:.1f}" if count["seconds"] > 0.05 else ""


def defaults(plan: Plan) -> str:
    """What the request assumed, for the line under a plan."""
    if plan.is_of_program:
        return f"Assumed: {gib(plan.data['hbm']['reserved_bytes'])} HBM reserved"
    request = plan.request
    return (
        f"Assumed: {request['dtype']}, {request['videos']} video, CFG {'on' if request['cfg'] else 'off'} "
        f"(model batch {request['videos'] * (2 if request['cfg'] else 1)}), {request['steps']} steps, "
        f"{gib(request['reserved_hbm_bytes'])} HBM reserved"
    )


def summary(plan: Plan) -> str:
    """What `aoizora plan` prints when it is done."""
    predicted = plan.data["best"]["predicted"]
    lines = [f"Plan for {title(plan)}", *wrap(defaults(plan), ""), ""]
    lines += table(["sharding", "ms", "ms passes", "GiB", "verified"], runner_rows(plan)[:6])
    lines += wrap(LEGEND, "")
    lines += [
        "",
        *textwrap.wrap("Best: " + plan.data["best"]["sharding"], WIDTH, subsequent_indent="  "),
        f"  placed {plan.data['best']['placement']['order']}",
        f"  {ms(predicted['block_seconds'])} ms a block, {predicted['step_seconds']:.3f} s a step, "
        f"{predicted['video_seconds']:.1f} s a video; {gib(plan.data['hbm']['bytes'])} HBM",
        *when_lines(plan),
        *idle_lines(plan),
        *gain_lines(plan),
    ]
    return "\n".join(lines) + "\n"


def inspect(data: dict[str, Any]) -> str:
    """What `aoizora inspect` prints of a program."""
    lines = [
        f"{data['dialect']} module {data['name']}: {data['instructions']} instructions in "
        f"{data['computation_count']} computations, {data['devices']} devices",
        f"entry parameters: {data['parameter_bytes'] / 1e6:.1f} MB" + (" a device" if data["dialect"] == "hlo" else ""),
    ]
    loops = [[loop["name"], "?" if loop["trips"] is None else f"{loop['trips']}"] for loop in data["loops"]]
    if loops:
        lines += ["", *table(["loop", "trips"], loops)]
    rows = [
        [
            f"{c['kind']} {c['name']}",
            f"{c['runs']}",
            f"{c['groups']} x {c['group_size']}" if "groups" in c else f"{len(c['pairs'])} pairs",
            f"{c['result_bytes'] / 1e6:.2f}",
            "async" if c["async"] else "sync",
        ]
        for c in data["collectives"]
    ]
    if rows:
        lines += ["", *table(["collective", "runs", "groups", "MB", ""], rows)]
        totals = [[kind, f"{t['count']}", f"{t['result_bytes'] / 1e6:.2f}"] for kind, t in data["totals"].items()]
        lines += ["", *table(["all runs", "count", "MB"], totals)]
    else:
        lines += ["", "no collectives"]
    counts = sorted(data["opcodes"].items(), key=lambda item: (-item[1], item[0]))
    lines += ["", *table(["opcode", "count"], [[name, f"{count}"] for name, count in counts[:20]])]
    return "\n".join(lines) + "\n"
