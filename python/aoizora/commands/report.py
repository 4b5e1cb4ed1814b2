"""`aoizora report` and `aoizora trace`: a plan to look at."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json")
    parser.add_argument("-o", "--out", default="report.html", metavar="FILE", help="where the page goes (report.html)")
    parser.add_argument("--json", action="store_true", help="print what the page draws as JSON; writes no page")
    parser.set_defaults(run=report)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json")
    parser.add_argument(
        "-o", "--out", default="plan.perfetto-trace", metavar="FILE", help="where it goes (plan.perfetto-trace)"
    )
    parser.add_argument("--json", action="store_true", help="print the lanes and their slots as JSON; writes no trace")
    parser.set_defaults(run=trace)


def report(options: argparse.Namespace) -> int:
    from aoizora.plan_file import Plan, check_writable, of_file, write_whole
    from aoizora.report import page

    plan = Plan.load(options.plan)
    if options.json:
        with of_file(options.plan):
            print(json.dumps(page.data(plan, options.plan)))
        return 0
    check_writable(Path(options.out))
    with of_file(options.plan):
        drawn = page.render(plan, options.plan)
    write_whole(Path(options.out), drawn)
    print(f"Written to {options.out}: one page, to be opened in any browser.")
    return 0


def trace(options: argparse.Namespace) -> int:
    from aoizora.plan_file import Plan, check_writable, of_file, write_whole
    from aoizora.report import trace as traces
    from aoizora.report import view

    plan = Plan.load(options.plan)
    if options.json:
        with of_file(options.plan):
            lanes = view.lanes(plan)
        print(json.dumps([{"name": lane.name, "rows": [[slot._asdict() for slot in row] for row in lane.rows]}
                          for lane in lanes]))  # fmt: skip
        return 0
    check_writable(Path(options.out))
    with of_file(options.plan):
        drawn = traces.trace(plan)
    write_whole(Path(options.out), drawn)
    print(f"Written to {options.out}: one block, for ui.perfetto.dev.")
    return 0
