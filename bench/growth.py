"""Times how planning grows with chips, candidates and layers. Prints JSON.

    python bench/growth.py [--compiler]

`slices`: of Wan 2.1 14B, 480x832, 81 frames, on ever larger v5e slices: candidates, seconds of the processor to
enumerate them, microseconds a candidate for its bound on Q1, and for all axis orders of a three-axis mesh the slice
has. `layers` (with --compiler, about a minute): seconds of the HLO passes for one candidate of Wan 2.1 1.3B on v5e:2x2
as its proxy gets deeper, one compiler process; the repeated block is a loop, so they should stay. Ratios are to the
first row, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aoizora import _core
from aoizora.compiler.store import AnswerStore
from aoizora.evaluation.sweep import Workload, job

MESHES = {
    "v5e:2x2": (2, 2, 1), "v5e:2x4": (2, 2, 2), "v5e:4x4": (2, 4, 2), "v5e:4x8": (2, 8, 2), "v5e:8x8": (4, 8, 2),
    "v5e:8x16": (4, 8, 4), "v5e:16x16": (4, 8, 8),
}  # fmt: skip
DEPTHS = (2, 3, 10, 40)


def seconds_of_processor(call: Any, repeats: int = 3) -> tuple[float, Any]:
    """Least seconds of this thread over the repeats, and what the call gives."""
    best, found = float("inf"), None
    for _ in range(repeats):
        began = time.thread_time()
        found = call()
        best = min(best, time.thread_time() - began)
    return best, found


def of_slice(name: str) -> dict[str, Any]:
    workload = Workload(name, 480, 81)
    enumerate_seconds, candidates = seconds_of_processor(lambda: workload.candidates, 1)
    texts = [json.dumps(candidate) for candidate in candidates]
    sample = texts[:: max(1, len(texts) // 200)]
    bounds_seconds, _ = seconds_of_processor(
        lambda: [_core.q1_bound(workload.table_json, text, name) for text in sample]
    )
    axes = zip(("data", "context", "tensor"), MESHES[name], strict=True)
    mesh = json.dumps([{"name": axis, "size": size} for axis, size in axes])
    orders_seconds, orders = seconds_of_processor(
        lambda: json.loads(_core.distinct_axis_orders(mesh, name, ["data", "context", "tensor"]))
    )
    return {
        "slice": name,
        "chips": len(_core.slice_devices(name)),
        "candidates": len(candidates),
        "enumerate_seconds": enumerate_seconds,
        "bound_microseconds": bounds_seconds / len(sample) * 1e6,
        "axis_orders": len(orders["placements"]),
        "axis_orders_seconds": orders_seconds,
    }


def of_layers() -> list[dict[str, Any]]:
    workload = Workload("v5e:2x2", 480, 21, "wan2.1-1.3b")
    candidate = workload.candidates[0]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store = AnswerStore(Path(folder) / "answers")
        with workload.queue(store, 1) as queue:
            for number, layers in enumerate((DEPTHS[0], *DEPTHS)):  # the first one warms up
                wanted = {**job(candidate, "passes"), "layers": layers, "id": number, "priority": 0.0}
                queue.submit(json.dumps(wanted))
                answer = queue.next()
                rows.append({"layers": layers, "passes_seconds": answer["seconds"], "text_bytes": len(answer["text"])})
        store.close()
    first = rows[1]["passes_seconds"]
    return [{**row, "of_the_first": row["passes_seconds"] / first} for row in rows[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", action="store_true", help="time the compiler at several depths too")
    options = parser.parse_args()
    result: dict[str, Any] = {"slices": [of_slice(name) for name in MESHES]}
    if options.compiler:
        result["layers"] = of_layers()
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
