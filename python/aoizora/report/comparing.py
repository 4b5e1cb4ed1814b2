"""Two plans, or two compiled programs, side by side: as data and as text."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from aoizora import _core, programs
from aoizora.plan_file import Plan
from aoizora.report import terminal, view


class Row(NamedTuple):
    """One thing that both have. A number's unit is in its name; texts differ or not."""

    name: str
    first: Any
    second: Any

    @property
    def difference(self) -> float | None:
        numbers = [v for v in (self.first, self.second) if isinstance(v, int | float) and not isinstance(v, bool)]
        return float(numbers[1] - numbers[0]) if len(numbers) == 2 else None


@view.reads_plan
def of_plan(plan: Plan) -> dict[str, dict[str, Any]]:
    """What a plan says, by topic; numbers as floats, in the unit that the topic names."""
    data = plan.data
    best = data["best"]
    predicted = best["predicted"]
    block = predicted["block"]
    compute = block["compute"]
    request = {f"request.{name}": value for name, value in data.get("request", {}).items()}
    rules = {f"{axis} on": ", ".join(axes) or "-" for axis, axes in plan.axis_rules.items()}
    times = {
        "block": predicted["block_seconds"] * 1e3,
        "matrix products": compute["matmul_seconds"] * 1e3,
        "attention kernel": compute["attention_seconds"] * 1e3,
        "relayout copies": compute["relayout_seconds"] * 1e3,
        "other compute": compute["other_seconds"] * 1e3,
        "exposed communication": block["exposed_communication_seconds"] * 1e3,
        "contention in it": block["contention_seconds"] * 1e3,
        "block by the passes": best["passes_block_seconds"] * 1e3,
        "step": predicted["step_seconds"] * 1e3,
    }
    moved: dict[str, float] = {}
    for c in block["collectives"]:
        moved[c["kind"]] = moved.get(c["kind"], 0.0) + c["bytes"] * c["runs"] / 1e6
    used: dict[str, float] = {}
    links: dict[str, float] = {}
    if view.has_schedule(plan):
        loads = view.block_loads(plan)
        used = {"links used": float(sum(load > 0 for load in loads.values()))}
        links = {"busiest link": max(loads.values(), default=0.0) / 1e6, "all links": sum(loads.values()) / 1e6}
    return {
        "what": {"slice": data["slice"]["name"], **request, "versions": ", ".join(data["versions"])},
        "sharding": {
            **{f"mesh {axis}": float(size) for axis, size in plan.mesh_shape.items()},
            **rules,
            "attention": data["attention"],
            "options": ", ".join(f"{k}={v}" for k, v in data["compiler_options"].items()) or "-",
        },
        "placement": {"order": best["placement"]["order"], "chips by rank": _chips(best["placement"])},
        "time, ms": times,
        "payload a block, MB": moved,
        "links": used,
        "over links a block, MB": links,
        "memory, GiB": {"HBM a device": data["hbm"]["bytes"] / terminal.GIB},
    }


def _chips(placement: dict[str, Any]) -> str:
    return " ".join(",".join(str(c) for c in at) for at in placement["coordinates"])


def of_program(text: str, slice_name: str = "") -> dict[str, dict[str, Any]]:
    """What a program holds; with a slice, what it costs there. Raises ParseError, InvalidRequest."""
    found = json.loads(_core.inspect(text))
    totals = found["totals"]
    parts: dict[str, dict[str, Any]] = {
        "what": {
            "module": found["name"],
            "dialect": found["dialect"],
            "devices": float(found["devices"]),
            "instructions": float(found["instructions"]),
            "computations": float(found["computation_count"]),
        },
        "memory, MB": {"entry parameters": found["parameter_bytes"] / 1e6},
        "collectives, all runs": {kind: float(t["count"]) for kind, t in totals.items()},
        "their results, MB": {kind: t["result_bytes"] / 1e6 for kind, t in totals.items()},
    }
    if slice_name:
        ranked = programs.rank(text, slice_name)
        now, best = ranked.seconds
        parts["time, ms"] = {"in the order of jax.devices()": now * 1e3, "in the best order": best * 1e3}
        parts["placement"] = {"best order": ranked.data["chosen"]["order"]}
    return parts


def side_by_side(first: dict[str, dict[str, Any]], second: dict[str, dict[str, Any]]) -> dict[str, list[Row]]:
    """What both of one kind say."""
    return {
        topic: [
            Row(name, first[topic].get(name), second[topic].get(name)) for name in {**first[topic], **second[topic]}
        ]
        for topic in first
    }


def as_json(found: dict[str, list[Row]]) -> dict[str, Any]:
    return {
        topic: {
            row.name: {"a": row.first, "b": row.second}
            | ({"difference": row.difference} if row.difference is not None else {})
            for row in rows
        }
        for topic, rows in found.items()
    }


def text(names: tuple[str, str], found: dict[str, list[Row]]) -> str:
    """Numbers side by side; of texts, only those that differ, one under the other."""
    lines = [f"A  {names[0]}", f"B  {names[1]}"]
    alike = []
    for topic, rows in found.items():
        rows_of_numbers = [row for row in rows if all(isinstance(v, float) or v is None for v in row[1:])]
        places = 0 if all(v is None or v == round(v) for row in rows_of_numbers for v in row[1:]) else 2
        numbers = [
            [row.name, *(_number(v, places) for v in row[1:]), _number(row.difference, places, "+")]
            for row in rows_of_numbers
        ]
        texts = [row for row in rows if isinstance(row.first, str | int) or isinstance(row.second, str | int)]
        differing = [row for row in texts if row.first != row.second]
        alike += [row.name for row in texts if row.first == row.second]
        if not numbers and not differing:
            continue
        if numbers:
            lines += ["", *terminal.table([topic, "A", "B", "B - A"], numbers)]
        else:
            lines += ["", topic]
        for row in differing:
            lines.append(f"  {row.name}")
            lines += terminal.wrap(f"A {_shown(row.first)}", "    ") + terminal.wrap(f"B {_shown(row.second)}", "    ")
    if alike:
        lines += ["", *terminal.wrap("The same in both: " + ", ".join(alike), "")]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _number(value: float | None, places: int, sign: str = "") -> str:
    if value is None:
        return "-"
    return f"{value:{sign}.{places}f}" if round(value, places) else f"{0:.{places}f}"
