"""Times the simulation: milliseconds a placement of recorded Wan proxies, 16 chips first. Prints JSON.

    python bench/simulation.py [--placements 50] [--repeats 5]

Random device orders have no collective in common, so each is simulated from nothing; this must stay below 50 ms. Axis
orders, of which there are few, share the collectives already timed. Milliseconds of the CPU, the least of the repeats;
reading the text is taken off (a call without placements).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import sys
import time
from pathlib import Path

from aoizora import _core

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "hlo"
PROGRAMS = {
    "flash_d2c8_4x4.hlo.txt": ("v5e:4x4", {"data": 2, "context": 8}),
    "flash_d2c2t2.hlo.txt": ("v5e:2x4", {"data": 2, "context": 2, "tensor": 2}),
    "ulysses_c8.hlo.txt": ("v5e:2x4", {"context": 8}),
}
LAYERS = 40
LIMIT_MS = 50.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placements", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    for name, (slice_name, mesh) in PROGRAMS.items():
        text = gzip.decompress((DATA / f"{name}.gz").read_bytes()).decode()
        ids = {tuple(chip): i for i, (chip, _) in enumerate(_core.slice_devices(slice_name))}
        found = json.loads(_core.distinct_axis_orders(json.dumps(mesh), slice_name, list(mesh), list(mesh)))
        orders = [[ids[tuple(chip)] for chip in placement["coordinates"]] for placement in found["placements"]]
        rng = random.Random(0)
        shuffled = [rng.sample(range(len(ids)), len(ids)) for _ in range(arguments.placements)]

        def milliseconds(placements: list[list[int]], text: str = text, slice_name: str = slice_name) -> float:
            taken = []
            for _ in range(arguments.repeats):
                began = time.process_time()
                _core.simulate_many(text, "", "", slice_name, placements, LAYERS, "code")
                taken.append((time.process_time() - began) * 1e3)
            return min(taken)

        reading = milliseconds([])
        result[name] = {
            "devices": len(ids),
            "reading_ms": reading,
            "random_orders_ms": (milliseconds(shuffled) - reading) / len(shuffled),
            "axis_orders": len(orders),
            "axis_orders_ms": (milliseconds(orders) - reading) / len(orders),
        }
    print(json.dumps({"cpus": os.cpu_count(), "limit_ms": LIMIT_MS, "programs": result}, indent=2))
    slowest = max(row["random_orders_ms"] for row in result.values())
    return 0 if slowest < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
