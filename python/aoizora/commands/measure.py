"""`aoizora measure plan.json`: the best plans' proxies on the devices that are here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aoizora.commands import processes

if TYPE_CHECKING:
    from aoizora.measure import Result
    from aoizora.plan_file import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="the best and so many in all (3)")
    parser.add_argument("--layers", type=int, default=3, metavar="N", help="blocks of the proxy (3)")
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="runs timed, after two to warm up (10)")
    parser.add_argument(
        "--slice", default=None, metavar="FILE", help="predict what runs here with this descriptor (aoizora calibrate)"
    )
    parser.add_argument("--out", default="measured.json", metavar="FILE", help="where it goes (measured.json)")
    parser.add_argument("--json", action="store_true", help="print what goes into the file instead of the table")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    processes.add_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from aoizora.measure import measure
    from aoizora.plan_file import Plan, check_writable, write_whole
    from aoizora.report.progress import ProgressLine

    plan = Plan.load(options.plan)
    check_writable(Path(options.out))
    with processes.joined(options) as writes:
        progress = ProgressLine(quiet=options.quiet or not writes)
        try:
            found = measure(
                plan,
                options.top,
                layers=options.layers,
                repeats=options.repeats,
                slice=options.slice,
                progress=progress,
            )
        finally:
            progress.close()
    if not writes:
        return 0
    write_whole(Path(options.out), found.dumps())
    if options.json:
        sys.stdout.write(found.dumps())
        return 0
    print(f"{found.devices}, {found.layers} blocks, ms; measured: the median of {options.repeats}")
    print("\n".join(table(plan, found)))
    if found.correlation is not None:
        print(f"rank correlation of predicted and measured: {found.correlation:.2f}")
    if found.small:
        print("No TPU is here: a small transformer stood for the model.")
    if found.slice is not None:
        print(f"Predicted: the programs that ran, with the numbers of {found.slice}.")
    elif found.small:
        print("Predicted is of the model, so the two do not compare; --slice predicts what ran.")
    print(f"Written to {options.out}.")
    return 0


def table(plan: Plan, found: Result) -> list[str]:
    """The best plans' times, under each the order it ran in."""
    from aoizora.report import terminal

    rows = [
        [
            terminal.short(entry["candidate"]),
            *(f"{each * 1e3:.2f}" for each in (ran.predicted_seconds, ran.median_seconds, min(ran.seconds))),
        ]
        for entry, ran in zip([plan.data["best"], *plan.data["runners_up"]], found.plans, strict=False)
    ]
    heading, rule, *lines = terminal.table(["sharding", "predicted", "measured", "quickest"], rows)
    orders = [f"  placed {ran.order}" for ran in found.plans]
    body = [line for pair in zip(lines, orders, strict=True) for line in pair]
    return [heading, rule, *body, *terminal.wrap(terminal.SHORT_LEGEND, "")]
