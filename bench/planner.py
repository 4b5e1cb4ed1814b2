"""Times the planner beside the paper's loop done literally: every survivor compiled whole under every placement.

    python bench/planner.py [SLICE] [HEIGHTxWIDTH] [FRAMES] [--sample N] [--json FILE]

Same request, machine, compiler, workers, survivors and run. The loop asks Shardy for every candidate, keeps as many by
Q1 as the planner does, and would compile each under every distinct placement. That takes hours, so a seeded sample of
these pairs is compiled and the rest counted at the sample's rate. It traces a request once, as the planner does, where
the paper's traces each candidate: that favours the loop.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import aoizora
from aoizora import _core
from aoizora.compiler.queue import WorkerQueue
from aoizora.report.progress import ProgressLine

PROXY_LAYERS = 3


def ask(queue: WorkerQueue, jobs: list[dict[str, Any]]) -> tuple[float, list[dict[str, Any]]]:
    """Wall seconds until all are answered, and the answers in the jobs' order."""
    started = time.monotonic()
    for number, job in enumerate(jobs):
        queue.submit(json.dumps({"id": number, "priority": float(number), "layers": PROXY_LAYERS, **job}))
    answers = [queue.next() for _ in jobs]
    for answer in answers:
        if answer["outcome"] not in ("ok", "out_of_memory"):
            sys.exit(f"{answer['outcome']}: {answer['failure']}")
    return time.monotonic() - started, sorted(answers, key=lambda answer: int(answer["id"]))


class Memory:
    """The most memory that this process and all it started hold at once, looked at ten times a second: proportional set
    sizes, in which a page that several share counts once."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident, _tree(os.getpid()))))


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [root]
    for process in found:
        found.extend(children.get(process, []))
    return found


def _resident(process: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def orders(candidate: dict[str, Any], slice_name: str) -> list[list[int]]:
    """The distinct placements of a mesh, as device ids in mesh order."""
    ids = {tuple(chip): device for device, (chip, _) in enumerate(_core.slice_devices(slice_name))}
    found = json.loads(_core.distinct_axis_orders(json.dumps(candidate["mesh"]), slice_name))
    return [[ids[tuple(chip)] for chip in placement["coordinates"]] for placement in found["placements"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slice", nargs="?", default="v5e:4x4")
    parser.add_argument("size", nargs="?", default="480x832")
    parser.add_argument("frames", nargs="?", type=int, default=21)
    parser.add_argument("--sample", type=int, default=4, help="pairs of the loop to compile (4)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    height, width = map(int, options.size.split("x"))

    started = time.monotonic()
    with Memory() as memory:
        plan = aoizora.plan(
            size=(height, width), frames=options.frames, slice=options.slice, use_cache=False, progress=ProgressLine()
        )
    planned = time.monotonic() - started
    counts = {count["name"]: count["count"] for count in plan.data["counts"]}

    request = _core.request_json(json.dumps({"height": height, "width": width, "frames": options.frames}))
    description = json.loads(_core.slice_json(options.slice))
    places = _core.slice_devices(options.slice)
    table = _core.make_workload(request)
    depth = int(json.loads(table)["layers"])
    budget = json.dumps({"hbm_budget_bytes": int(description["hardware"]["hbm_bytes"]["value"])})
    candidates = [c["candidate"] for c in json.loads(_core.enumerate(table, options.slice, budget))["candidates"]]
    with WorkerQueue(json.loads(request), description["name"], places) as queue:
        stage_1, answers = ask(
            queue, [{"candidate": candidate, "rung": "propagate", "placement": None} for candidate in candidates]
        )
        scoring = time.monotonic()
        scores = [
            json.loads(_core.predict(answer["text"], table, json.dumps(candidate), options.slice, depth))["q1"][
                "seconds"
            ]
            for candidate, answer in zip(candidates, answers, strict=True)
        ]
        stage_1 += time.monotonic() - scoring
        best_first = sorted(range(len(candidates)), key=scores.__getitem__)
        survivors = [candidates[k] for k in best_first[: counts["survivors"]]]
        pairs = [(survivor, order) for survivor in survivors for order in orders(survivor, options.slice)]
        sample = random.Random(0).sample(pairs, min(options.sample, len(pairs)))
        whole, _ = ask(queue, [{"candidate": s, "rung": "code", "placement": order} for s, order in sample])
    loop = stage_1 + whole / len(sample) * len(pairs)
    times = plan.data["times"]
    figures = {
        "request": [options.slice, options.size, options.frames],
        "workers": len(os.sched_getaffinity(0)),
        "compiler": WorkerQueue.compiler_versions(),
        "decision_seconds": times["decision_seconds"],
        "verified_seconds": times["verified_seconds"],
        "planner_seconds": planned,
        "planner_peak_bytes": memory.peak_bytes,
        "loop_seconds": loop,
        "loop_stage_1_seconds": stage_1,
        "loop_survivors": len(survivors),
        "loop_pairs": len(pairs),
        "loop_pairs_compiled": len(sample),
        "loop_pairs_compiled_seconds": whole,
        "ratio": loop / planned,
    }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(
        f"planner: decided after {times['decision_seconds']:.1f} s, verified after {times['verified_seconds']:.1f} s, "
        f"all listed after {planned:.1f} s, in {memory.peak_bytes / 2**30:.2f} GiB\n"
        f"the paper's loop: stage 1 {stage_1:.1f} s, {len(pairs)} whole compiles; {len(sample)} took {whole:.1f} s: "
        f"{loop / 60:.0f} min in all\nratio {figures['ratio']:.0f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
