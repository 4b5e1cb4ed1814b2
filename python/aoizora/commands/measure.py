"""`aoizora measure plan.json`: the best plans' proxies on the devices that are here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aoizora.commands import processes


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
    from aoizora.report import terminal
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
    rows = [
        [
            plan.sharding,
            plan.order,
            *(f"{each * 1e3:.2f}" for each in (plan.predicted_seconds, plan.median_seconds, min(plan.seconds))),
        ]
        for plan in found.plans
    ]
    header = ["sharding", "order", "predicted", "measured", "quickest"]
    print(f"{found.devices}, {found.layers} blocks, ms; measured: the median of {options.repeats}")
    print("\n".join(terminal.table(header, rows)))
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
