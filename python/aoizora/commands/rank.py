"""`aoizora rank FILE --slice NAME`: the best device order for a compiled program as it is."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from aoizora.errors import InvalidRequest, ParseError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="optimized HLO text; - for standard input")
    parser.add_argument("--slice", required=True, metavar="NAME", help="slice, or a descriptor file")
    parser.add_argument("--mesh", default="", metavar="A=N,B=M", help="mesh axes, major first (from the program)")
    parser.add_argument("--order", default="", metavar="I,J,...", help="position in jax.devices() of each rank now")
    parser.add_argument("--rate", type=float, default=1.0, metavar="X", help="of nominal on every link (1)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from aoizora import programs
    from aoizora.report import terminal
    from aoizora.report.printable import people

    program = sys.stdin.buffer.read() if options.file == "-" else Path(options.file)
    try:
        found = programs.rank(
            program,
            options.slice,
            mesh=_mesh(options.mesh),
            order=_order(options.order),
            rate_scale=options.rate,
        )
    except ParseError as error:
        raise ParseError(f"{options.file}, {error}", error.line, error.column) from None
    if options.json:
        print(json.dumps({**found.data, "permutation": found.permutation, "coordinates": found.coordinates}))
        return 0
    before, after = found.seconds
    data = found.data
    axes = " x ".join(f"{name} {size}" for name, size in found.mesh_axes.items())
    read_off = " (read off the program's groups)" if data["mesh_inferred"] else ""
    line = f"{data['slice']}, mesh {axes}{read_off}, {data['placements']} distinct orders"
    print(people("\n".join(terminal.wrap(line, ""))))
    if found.assumed:
        print(found.assumed)
    if not data["mesh_explains_all"]:
        print("some groups follow no mesh axis: orders along the mesh may miss what is best for them")
    print(f"now   {before * 1e3:.3f} ms")
    print(people(f"best  {after * 1e3:.3f} ms, {100 * found.gain:.1f} % less: {data['chosen']['order']}"))
    moved = sum(rank != device for rank, device in enumerate(found.permutation))
    print(f"{moved} of {len(found.permutation)} ranks move" if moved else "no rank moves")
    pairs = list(zip(data["now"]["collectives"], data["chosen"]["collectives"], strict=True))
    pairs.sort(key=lambda pair: -pair[0]["runs"] * pair[0]["seconds"])
    rows = [
        [
            now["kind"],
            f"{now['runs']:g}",
            f"{now['bytes'] / 2**20:.1f}",
            *(f"{each['effective_bytes_per_second'] / 1e9:.1f}" for each in (now, best)),
            *(f"{each[key] * 1e3:.3f}" for key in ("seconds", "exposed_seconds") for each in (now, best)),
        ]
        for now, best in pairs[:8]
    ]
    if rows:
        print("\nThe longest collectives, now and in the best order: effective bandwidth,")
        print("ms of one run, and of it what compute does not hide")
        header = ["collective", "runs", "MiB", "GB/s", "best", "ms", "best", "exposed", "best"]
        print(people("\n".join(terminal.table(header, rows))))
    positions = {device: position for position, device in enumerate(programs.jax_order(found.places))}
    print(f"\ndevices = numpy.array(jax.devices())[{[positions[device] for device in data['chosen']['devices']]}]")
    return 0


def _mesh(text: str) -> dict[str, int] | None:
    if not text:
        return None
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name or not (size.isascii() and size.isdigit()) or name in axes or len(size) > 6:
            raise InvalidRequest(f"--mesh {text}: give sizes by name, major first, for example data=2,context=4")
        axes[name] = int(size)
    return axes


def _order(text: str) -> list[int] | None:
    if not text:
        return None
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and len(part) < 8 for part in parts):
        raise InvalidRequest(f"--order {text[:64]}: give positions in jax.devices(), for example 0,1,3,2")
    return [int(part) for part in parts]
