"""`aoizora calibrate`: a descriptor from microbenchmarks on the devices that are here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aoizora.commands import processes
from aoizora.errors import InvalidRequest

if TYPE_CHECKING:
    from aoizora.calibrating import Calibration

_POOR = 0.25
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="descriptor.json", metavar="FILE", help="the descriptor (descriptor.json)")
    parser.add_argument(
        "--slice", default=None, metavar="NAME", help="slice or descriptor the devices are or stand for"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="KIND", help="one kind of collective, matmul or attention"
    )
    parser.add_argument(
        "--sizes", default="64k,1M,8M", metavar="LIST", help="payloads of collectives in bytes (64k,1M,8M)"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs whose median counts (5)")
    parser.add_argument("--warm-up", type=int, default=2, metavar="N", help="runs before them (2)")
    parser.add_argument("--seconds", type=float, default=0.03, metavar="S", help="length of a run (0.03)")
    parser.add_argument("--json", action="store_true", help="print times, numbers and descriptor as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    processes.add_arguments(parser)
    parser.set_defaults(run=run)


def sizes_bytes(text: str) -> list[int]:
    """64k,1M,8M: powers of 1000."""
    result = []
    for part in text.split(","):
        number, unit = (part[:-1], part[-1:]) if part[-1:] in _UNITS and part[-1:] else (part, "")
        if not (number.isascii() and number.isdigit()) or len(number) > 10:
            raise InvalidRequest(f"--sizes {text[:80]!r}: give bytes separated by commas, for example 64k,1M,8M")
        result.append(int(number) * _UNITS[unit])
    return result


def run(options: argparse.Namespace) -> int:
    from aoizora.calibrating import COLLECTIVES, KERNELS, calibrate
    from aoizora.plan_file import check_writable, write_whole
    from aoizora.report.progress import ProgressLine

    sizes = sizes_bytes(options.sizes)
    check_writable(Path(options.out))
    with processes.joined(options) as writes:
        progress = ProgressLine(quiet=options.quiet or not writes)
        try:
            found = calibrate(
                options.slice,
                kinds=options.only or (*COLLECTIVES, *KERNELS),
                sizes_bytes=sizes,
                repeats=options.repeats,
                warm_up=options.warm_up,
                seconds=options.seconds,
                progress=progress,
            )
        finally:
            progress.close()
    if not writes:
        return 0
    write_whole(Path(options.out), found.descriptor())
    if options.json:
        sys.stdout.write(found.dumps())
        return 0
    print("\n".join(lines(found)))
    print(f"Written to {options.out}: aoizora plan --slice {options.out}")
    return 0


def lines(found: Calibration) -> list[str]:
    """The report for people."""
    from aoizora.report import terminal

    rows = [
        [f"{case.kind}, {case.what}", case.size_text, _ms(measured), _ms(predicted), f"{100 * off:+.1f} %"]
        for case, measured, predicted, off in zip(
            found.cases, found.seconds, found.fitted.predicted_seconds, found.off, strict=True
        )
    ]
    result = [f"{found.devices} as {found.slice}; ms, predicted: by the planner with the numbers below", ""]
    result += terminal.table(["microbenchmark", "size", "measured", "predicted", "off"], rows)
    result += [
        "",
        *terminal.table(["off, root mean square", ""], [[k, f"{100 * v:.1f} %"] for k, v in found.off_by_kind.items()]),
    ]
    changes = [[change.number, f"{change.before:.6g}", f"{change.value:.6g}"] for change in found.fitted.changes]
    result += ["", *terminal.table(["number", "before", "fitted"], changes)]
    result += ["", "Kept as they were:"]
    for kept in found.fitted.kept:
        result += terminal.wrap(f"{kept.number}: {kept.reason}")
    poor = [kind for kind, off in found.off_by_kind.items() if off > _POOR]
    if poor:
        result += [
            "",
            *terminal.wrap(f"The planner's costs do not describe these devices well: {', '.join(poor)}.", ""),
        ]
    return result


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"
