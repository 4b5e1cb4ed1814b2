"""A plan as one HTML page that needs no network: `render`. What a plan says goes in as JSON, never as markup."""

from __future__ import annotations

import json
import shlex
from importlib import resources
from typing import Any

from aoizora.plan_file import Plan
from aoizora.report import terminal, view


@view.reads_plan
def render(plan: Plan, path: str = "plan.json") -> str:
    """The page. path: the plan's file, for the commands. Raises InvalidRequest where the plan is damaged."""
    files = resources.files(__package__)
    text = files.joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "/*STYLE*/": files.joinpath("page.css").read_text(encoding="utf-8"),
        "/*SCRIPT*/": files.joinpath("page.js").read_text(encoding="utf-8"),
        "/*DATA*/": _embedded(data(plan, path)),
    }
    for mark, part in parts.items():
        before, _, after = text.partition(mark)
        text = before + part + after
    return text


def _embedded(value: dict[str, Any]) -> str:
    """JSON that ends no script element and starts no comment, whatever is in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data(plan: Plan, path: str) -> dict[str, Any]:
    """What page.js draws."""
    best = plan.data["best"]
    predicted = best["predicted"]
    dims, wraps, cores = view.shape(plan)
    found: dict[str, Any] = {
        "title": terminal.title(plan),
        "unit": terminal.unit(plan),
        "assumed": terminal.defaults(plan),
        "sharding": view.words(best["sharding"]),
        "order": view.words(best["placement"]["order"]),
        "slice": {"name": view.words(plan.data["slice"]["name"]), "dims": dims, "wraps": wraps, "cores": cores},
        "mesh": list(plan.mesh_shape.items()),
        "places": view.places(plan),
        "collectives": view.collectives(plan),
        "ici_bytes_per_second": view.number(plan.data["slice"]["hardware"]["ici_bytes_per_second"]["value"]),
        "block_seconds": whole_seconds(predicted),
        "exposed_seconds": view.number(predicted["block"]["exposed_communication_seconds"]),
        "rung": "with the compiler's cycles" if predicted["rung"] == "code" else "by the HLO passes",
        "hbm_limit_bytes": view.number(plan.data["hbm"]["limit_bytes"]),
        "hbm_source": view.words(plan.data["hbm"]["source"]),
        "facts": _facts(plan),
        "time": _time(predicted, terminal.unit(plan)),
        "memory": _memory(plan.data["hbm"]),
        "plans": [_row(plan, ranked) for ranked in (best, *plan.data["runners_up"])],
        "legend": terminal.LEGEND,
        "why": plan.data["why"],
        "half": _half(plan),
        "gains": _gains(plan),
        "notes": [view.words(note) for note in (*plan.data["lost"], *plan.data["refused"])],
        "commands": commands(plan, path),
        "made_with": "Made with " + ", ".join(plan.data["versions"]) + ". All times are predictions.",
        "missing": view.AGAIN.capitalize() + ".",
    }
    if view.has_schedule(plan):
        view.collective_loads(plan)  # checks what the page adds up
        found["links"] = [[link.start, link.end, link.dimension, *(link.cores or ())] for link in view.links(plan)]
        found["patterns"] = predicted["block"]["patterns"]
        found["lanes"] = [
            {
                "name": lane.name,
                "rows": [[[s.kind, s.begin_seconds, s.end_seconds, s.collective] for s in row] for row in lane.rows],
            }
            for lane in view.lanes(plan)
        ]
        found["placements"] = [
            [view.number(seconds), view.whole(count, 2**31), [view.words(order) for order in orders]]
            for seconds, count, orders in plan.data["placements"]["priced"]
        ]
        if not found["placements"] or not all(count and orders for _, count, orders in found["placements"]):
            raise ValueError("no placement is priced")
    for part in (*found["time"], *found["memory"]):
        view.number(part["value"])
    if not found["ici_bytes_per_second"]:
        raise ValueError("links without a rate")
    return found


def whole_seconds(predicted: dict[str, Any]) -> float:
    """What the breakdown is of: one block, or the step where nothing repeats."""
    return view.number(predicted["block_seconds"] or predicted["step_seconds"])


def _facts(plan: Plan) -> list[list[str]]:
    predicted, hbm = plan.data["best"]["predicted"], plan.data["hbm"]
    request = plan.data.get("request")
    facts = [["one step", f"{predicted['step_seconds']:.3f} s", "block × layers, entry and exit" if request else ""]]
    if request:
        facts.insert(0, ["one block", f"{terminal.ms(whole_seconds(predicted))} ms", f"{plan.data['layers']} in all"])
    if request and "video_seconds" in predicted:
        facts.append(["one video", f"{predicted['video_seconds']:.1f} s", f"{request['steps']} steps"])
    facts.append(["HBM a device", terminal.gib(hbm["bytes"]), f"of {terminal.gib(hbm['limit_bytes'])}"])
    gains = [c for c in plan.data["comparisons"] if "gain_percent" in c]
    if gains:
        facts.append(["gain a step", f"{gains[0]['gain_percent']:.0f} %", f"over {gains[0]['name']}"])
    return facts


def _time(predicted: dict[str, Any], what: str) -> list[dict[str, Any]]:
    block = predicted["block"]
    compute = block["compute"]
    return [
        {"name": "matrix products", "value": compute["matmul_seconds"]},
        {"name": "attention kernel", "value": compute["attention_seconds"]},
        {"name": "of it on padding", "value": compute["padding_seconds"], "sub": True},
        {"name": "relayout copies", "value": compute["relayout_seconds"]},
        {"name": "other compute", "value": compute["other_seconds"]},
        {"name": "communication not hidden", "value": block["exposed_communication_seconds"]},
        {"name": "of it contention", "value": block["contention_seconds"], "sub": True},
        {"name": "waits for copies", "value": terminal.copy_wait_seconds(predicted)},
        {"name": f"one {what}", "value": whole_seconds(predicted), "sum": True},
    ]


def _memory(hbm: dict[str, Any]) -> list[dict[str, Any]]:
    total, reserved = hbm["bytes"], hbm["reserved_bytes"]
    weights, arguments = hbm.get("weights_bytes"), hbm.get("arguments_bytes")
    if weights is None or arguments is None or not weights <= arguments <= total:
        parts = [{"name": "weights, inputs and temporaries", "value": total}]
    else:
        parts = [
            {"name": "weights", "value": weights},
            {"name": "other inputs", "value": arguments - weights},
            {"name": "activations and temporaries", "value": total - arguments},
        ]
    parts.append({"name": "reserved by the request", "value": reserved})
    return [*parts, {"name": "in use and reserved", "value": total + reserved, "sum": True}]


def _row(plan: Plan, ranked: dict[str, Any]) -> dict[str, Any]:
    predicted = ranked["predicted"]
    block = predicted["block"]
    compute = block["compute"]
    return {
        "best": ranked is plan.data["best"],
        "sharding": view.words(ranked["sharding"]),
        "short": _short(ranked["candidate"]),
        "order": view.words(ranked["placement"]["order"]),
        "passes_seconds": view.number(ranked["passes_block_seconds"]),
        "code_seconds": view.number(predicted["block_seconds"]) if predicted["rung"] == "code" else None,
        **{
            f"{part}_seconds": view.number(compute[f"{part}_seconds"])
            for part in ("matmul", "attention", "relayout", "other")
        },
        "exposed_seconds": view.number(block["exposed_communication_seconds"]),
        "contention_seconds": view.number(block["contention_seconds"]),
        "hbm_bytes": view.number(ranked["hbm_bytes"]),
        "verified": bool(ranked["verified"]),
    }


def _short(candidate: dict[str, Any]) -> str:
    """A program's sharding names no attention."""
    return terminal.short({**candidate, "attention": candidate.get("attention") or ""}).strip()


def _half(plan: Plan) -> str:
    other = plan.data["half_rate_winner"]
    if other:
        return f"At half the links' rate another plan would win: {other}"
    return "The same plan wins at half the links' rate."


def _gains(plan: Plan) -> list[dict[str, str]]:
    best = plan.data["best"]
    rows = []
    for c in plan.data["comparisons"]:
        if "reason" in c:
            text = c["reason"]
        else:
            text = (
                f"{terminal.ms(c['passes_block_seconds'])} ms a {terminal.unit(plan)} by the HLO passes, the plan "
                f"{terminal.ms(best['passes_block_seconds'])}: {c['gain_percent']:.1f} % a step"
            )
        if c.get("allow_split_physical_axes"):
            text += "; jax gives this order only with allow_split_physical_axes=True"
        rows.append({"name": view.words(c["name"]), "text": text})
    return rows


def commands(plan: Plan, path: str) -> list[dict[str, str]]:
    """What a reader goes on with, ready for a shell."""
    name = shlex.quote(path)
    found = [
        {"title": "Print the plan and why it won", "text": f"aoizora explain {name}"},
        {"title": "Its schedule for Perfetto", "text": f"aoizora trace {name} -o plan.perfetto-trace"},
        {
            "title": "Its mesh in JAX, on the TPU",
            "text": f"import aoizora, jax\nmesh = aoizora.Plan.load({path!r}).mesh(jax.devices())",
        },
    ]
    request = plan.data.get("request")
    if request:
        found.insert(0, {"title": "Make this plan", "text": plan_command(plan, path)})
        found.insert(2, {"title": "Its lines for MaxDiffusion", "text": f"aoizora export {name} --to maxdiffusion"})
    return found


def plan_command(plan: Plan, path: str) -> str:
    """The command that makes this plan from the start."""
    request, settings = plan.data["request"], plan.data["settings"]
    words = ["aoizora", "plan", "--model", request["model"], "--size", f"{request['height']}x{request['width']}"]
    words += ["--frames", request["frames"], "--slice", plan.data["slice"]["name"]]
    defaults: list[tuple[str, Any, Any]] = [
        ("--videos", request["videos"], 1),
        ("--steps", request["steps"], 50),
        ("--dtype", request["dtype"], "bf16"),
        ("--reserve-hbm", request["reserved_hbm_bytes"] / terminal.GIB, 0),
        ("--verify", settings["verify"], 1),
        ("--survivors", settings["survivor_fraction"], 0.15),
        ("--finalists", settings["finalists"], 2),
        ("--min-weight-sharding", settings["minimum_weight_sharding"], 0),
    ]
    for option, value, usual in defaults:
        if value != usual:
            words += [option, f"{value:g}" if isinstance(value, float) else value]
    words += ["--no-cfg"] if not request["cfg"] else []
    words += ["--no-ulysses"] if not settings["ulysses"] else []
    words += ["--no-windowed-einsum-search"] if not settings["windowed_einsum"] else []
    words += ["--source", plan.data["source"]["name"]] if "source" in plan.data else []
    return shlex.join([str(word) for word in [*words, "--out", path]])
