"""A slice as text: its chips, links, wraps and numbers, at most 80 columns."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

from aoizora import _core
from aoizora.report import terminal
from aoizora.report.view import DIMENSIONS


def described(name: str) -> dict[str, Any]:
    """All that is known of a slice. Raises InvalidRequest, ParseError."""
    descriptor = json.loads(_core.slice_json(name))
    dims, wraps = descriptor["dims"], descriptor["wraps"]
    links = [
        {"from_chip": start, "to_chip": end, "dimension": dimension, "from_core": a, "to_core": b,
         "bytes_per_second": rate}
        for start, end, dimension, a, b, rate in _core.slice_links(name)
    ]  # fmt: skip
    return {
        **descriptor,
        "chips": math.prod(dims),
        "devices": [{"coordinates": at, "core": core} for at, core in _core.slice_devices(name)],
        "diameter_hops": sum(_farthest(size, wrap) for size, wrap in zip(dims, wraps, strict=True)),
        "bisection_bytes_per_second": _bisection(dims, wraps) * descriptor["hardware"]["ici_bytes_per_second"]["value"],
        "links": links,
    }


def _farthest(size: int, wrap: bool) -> int:
    return size // 2 if wrap and size > 2 else size - 1


def _bisection(dims: list[int], wraps: list[bool]) -> int:
    """Links, one direction, between the halves of the slice, cut across its longest dimension."""
    longest = max(range(len(dims)), key=lambda d: dims[d])
    if dims[longest] < 2:
        return 0
    rings = 2 if wraps[longest] and dims[longest] > 2 else 1
    return math.prod(dims) // dims[longest] * rings


def text(found: dict[str, Any], given: str) -> str:
    """The slice for people, `given` by this name or file."""
    dims, wraps, cores = found["dims"], found["wraps"], found["cores_per_chip"]
    around = [axis for axis, wrap in zip(DIMENSIONS, wraps, strict=False) if wrap]
    wide = sum(link["dimension"] >= 0 for link in found["links"])
    lines = [
        f"{found['name']}: {found['chips']} chips ({' x '.join(map(str, dims))})"
        + (f" of {cores} cores" if cores > 1 else "")
        + (f", wraps along {', '.join(around)}" if around else ", no wrap"),
        *terminal.wrap(
            f"{wide} directed links between chips"
            + (f", {len(found['links']) - wide} between cores" if len(found["links"]) > wide else "")
            + f"; {found['diameter_hops']} hops at most; "
            f"{found['bisection_bytes_per_second'] / 1e9:g} GB/s across the middle",
            "",
        ),
        "",
        *_drawing(dims, wraps, cores),
        "",
    ]
    rows = []
    for key, entry in found["hardware"].items():
        if isinstance(entry, dict) and "value" in entry:
            rows.append((key, entry["value"], entry["source"]))
    lines.append("Numbers of one device, with their sources")
    for key, value, source in rows:
        lines.append(f"  {key:<28} {value:.6g}")
        lines += terminal.wrap(source, "      ")
    lines += ["  Each kind of collective:", f"    aoizora topology {shlex.quote(given)} --json"]
    return "\n".join(lines) + "\n"


def _drawing(dims: list[int], wraps: list[bool], cores: int) -> list[str]:
    """Planes of x and y, JAX's device ids in them (of a chip's first core), x fastest."""
    width, height = dims[0], dims[1] if len(dims) > 1 else 1
    planes = math.prod(dims[2:])
    size = len(str(math.prod(dims) * cores - 1))
    room = terminal.WIDTH - 10
    gap = 3 if width * (size + 3) <= room else 1
    shown = min(width, room // (size + gap))
    high = min(height, 64)
    lines = []
    for plane in range(min(planes, 16)):
        if planes > 1:
            at, rest = [], plane
            for d in range(2, len(dims)):
                at.append(f"{DIMENSIONS[d]}{rest % dims[d]}")
                rest //= dims[d]
            lines += ["", " ".join(at)]
        lines.append(" " * 6 + (" " * gap).join(f"x{x}".ljust(size) for x in range(shown)).rstrip())
        if len(dims) > 1 and wraps[1] and height > 2:
            lines.append(" " * 6 + (" " * gap).join("~".ljust(size) for _ in range(shown)).rstrip())
        for y in range(high):
            numbers = [str(((plane * height + y) * width + x) * cores).ljust(size, "-") for x in range(shown)]
            ring = wraps[0] and width > 2
            row = ("-" * gap).join(numbers)
            row = row.rstrip("-") if shown == width else f"{row} ..."
            name = f"y{y}" if len(dims) > 1 else ""
            lines.append(f"{name:<4}{'~ ' if ring else '  '}{row}{' ~' if ring else ''}")
            if y + 1 < high:
                lines.append(" " * 6 + (" " * gap).join("|".ljust(size) for _ in range(shown)).rstrip())
        if high < height:
            lines.append("      ...")
        elif len(dims) > 1 and wraps[1] and height > 2:
            lines.append(" " * 6 + (" " * gap).join("~".ljust(size) for _ in range(shown)).rstrip())
    if planes > 16:
        lines.append(f"... {planes - 16} more planes")
    if len(dims) > 2:
        steps = ", ".join(DIMENSIONS[d] for d in range(2, len(dims)))
        lines.append(f"links along {steps} join the same place of neighbouring planes")
    lines.append(
        "numbers: jax.devices() ids"
        + (", of each chip's first core" if cores > 1 else "")
        + ("; ~ goes round" if any(wraps) else "")
    )
    return lines
