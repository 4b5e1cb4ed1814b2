"""`aoizora sweep FILE.toml`: many plans from one file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="TOML: model, slice, size, frames, ... each a value or a list")
    parser.add_argument("--out", default="plans", metavar="DIR", help="where the plans go (plans)")
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help="a Dask scheduler; here without it")
    parser.add_argument("--workers", type=int, default=None, metavar="N", help="compiler processes a plan")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of the table")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from aoizora import sweeping
    from aoizora.report import terminal
    from aoizora.report.progress import ProgressLine

    tasks = sweeping.read(options.file)
    progress = ProgressLine(quiet=options.quiet)
    if options.scheduler:
        planner = sweeping.on_cluster(options.scheduler, options.workers)
    else:
        planner = sweeping.local(options.workers, progress)
    done = 0

    def told(row: sweeping.Row) -> None:
        nonlocal done
        done += 1
        progress.close()
        if not options.quiet:
            what = f": {row.error}" if row.error else ""
            print(f"{done}/{len(tasks)} {row.name} {row.outcome}{what}", file=sys.stderr, flush=True)

    try:
        rows = sweeping.run(tasks, Path(options.out), planner, told)
    finally:
        progress.close()
    code = max((row.exit_code for row in rows), default=0)
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
        return code
    table = [
        [row.name, row.outcome, *(["", ""] if row.error else [f"{row.step_seconds:.3f}", f"{row.video_seconds:.1f}"])]
        for row in rows
    ]
    print("\n".join(terminal.table(["plan", "outcome", "s a step", "s a video"], table)))
    print(f"Plans in {options.out}, the table in {Path(options.out) / 'sweep.json'}.")
    return code
