"""Times the planner beside the paper's loop done literally: every survivor compiled whole under every placement.

    python bench/planner.py [SLICE] [HEIGHTxWIDTH] [FRAMES] [--sample N] [--json FILE]

Same request, machine, compiler, workers and run. The loop would take hours, so a sample of its pairs is compiled, the
listed shardings each under its best placement, and the rest counted at the sample's rate. Its stage 1 asks for every
candidate. Both use the same workers and the same shared traces, which favours the loop.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import aoizora
from aoizora import _core
from aoizora.compiler.queue import WorkerQueue
from aoizora.report.progress import ProgressLine

PROXY_LAYERS = 3


def ask(queue: WorkerQueue, jobs: list[dict[str, Any]]) -> float:
    """Wall seconds until all are answered."""
    started = time.monotonic()
    for number, job in enumerate(jobs):
        queue.submit(json.dumps({"id": number, "priority": float(number), "layers": PROXY_LAYERS, **job}))
    for _ in jobs:
        answer = queue.next()
        if answer["outcome"] not in ("ok", "out_of_memory"):
            sys.exit(f"{answer['outcome']}: {answer['failure']}")
    return time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slice", nargs="?", default="v5e:4x4")
    parser.add_argument("size", nargs="?", default="480x832")
    parser.add_argument("frames", nargs="?", type=int, default=21)
    parser.add_argument("--sample", type=int, default=4, help="pairs of the loop to compile (4)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    height, width = map(int, options.size.split("x"))

    plan = aoizora.plan(
        size=(height, width), frames=options.frames, slice=options.slice, use_cache=False, progress=ProgressLine()
    )
    counts = {count["name"]: count["count"] for count in plan.data["counts"]}
    pairs = counts["sharding-placement pairs priced"]

    request = _core.request_json(json.dumps({"height": height, "width": width, "frames": options.frames}))
    description = json.loads(_core.slice_json(options.slice))
    places = _core.slice_devices(options.slice)
    ids = {tuple(chip): device for device, (chip, _) in enumerate(places)}
    table = _core.make_workload(request)
    budget = json.dumps({"hbm_budget_bytes": int(description["hardware"]["hbm_bytes"]["value"])})
    candidates = [c["candidate"] for c in json.loads(_core.enumerate(table, options.slice, budget))["candidates"]]
    listed = [
        (row["candidate"], [ids[tuple(chip)] for chip in row["placement"]["coordinates"]])
        for row in plan.data["runners_up"][: options.sample]
    ]
    with WorkerQueue(json.loads(request), description["name"], places) as queue:
        stage_1 = ask(
            queue, [{"candidate": candidate, "rung": "propagate", "placement": None} for candidate in candidates]
        )
        whole = ask(
            queue, [{"candidate": candidate, "rung": "code", "placement": order} for candidate, order in listed]
        )
    loop = stage_1 + whole / len(listed) * pairs
    times = plan.data["times"]
    figures = {
        "request": [options.slice, options.size, options.frames],
        "decision_seconds": times["decision_seconds"],
        "verified_seconds": times["verified_seconds"],
        "loop_seconds": loop,
        "loop_stage_1_seconds": stage_1,
        "loop_pairs": pairs,
        "loop_pairs_compiled": len(listed),
        "loop_pairs_compiled_seconds": whole,
        "ratio": loop / times["verified_seconds"],
    }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(
        f"planner: decided after {times['decision_seconds']:.1f} s, verified after {times['verified_seconds']:.1f} s\n"
        f"the paper's loop: stage 1 {stage_1:.1f} s, {pairs} whole compiles; {len(listed)} took {whole:.1f} s: "
        f"{loop / 60:.0f} min in all\nratio {figures['ratio']:.0f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
