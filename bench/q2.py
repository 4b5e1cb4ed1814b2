"""Times Q2: microseconds of the CPU a placement, and how that grows with the slice. Prints JSON.

    python bench/q2.py [--placements 200] [--repeats 5]

`programs`: recorded Wan proxies, 16 chips first, under random device orders: they have no collective in common, so
nothing of one helps the next, as it does with axis orders. `growth`: one recorded proxy of data 2 x context 2 x
tensor 2 with its groups stretched to larger meshes of three axes, under every axis order that symmetry and signature
leave; with `ordered`, as if permutes ran along the context axis, so that the order inside it counts too. Each number is
the least of the repeats; reading the text is taken off (a call without placements).
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from aoizora import _core

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "hlo"
PROGRAMS = {"flash_d2c8_4x4": "v5e:4x4", "flash_d2c2t2": "v5e:2x4", "flash_c8": "v5e:2x4", "ulysses_c8": "v5e:2x4"}
GROWTH = {"v5e:8x8": (4, 4, 4), "v5e:8x16": (4, 8, 4), "v5e:16x16": (4, 8, 8)}
AXES = ("data", "context", "tensor")
PRINTED = re.compile(
    r"replica_groups=(?:mesh\[[^\]]*\] \{'axis_(?P<axis>\d)'\}|\{\{(?P<groups>[\d,{}]+)\}\}"
    r"|\[(?P<dims>[\d,]+)\]<=\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?)"
    r"|source_target_pairs=\{\{(?P<pairs>[\d,{}]+)\}\}"
)
LAYERS = 40
LIMIT_US = 200.0  # a placement of the Wan proxy on 16 chips
LIMIT_SECONDS = 10.0  # every axis order of three axes on 16x16


def recorded(name: str) -> str:
    return gzip.decompress((DATA / f"{name}.hlo.txt.gz").read_bytes()).decode()


def varying(groups: np.ndarray) -> list[int]:
    """Axes of 2 x 2 x 2 along which the members of a group differ."""
    digits = np.stack(np.unravel_index(groups, (2, 2, 2)))
    return [axis for axis in range(3) if (digits[axis] != digits[axis][:, :1]).any()]


def braces(rows: np.ndarray) -> str:
    return "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in rows.tolist()) + "}"


def stretched(text: str, sizes: Sequence[int]) -> str:
    """A program of 2 x 2 x 2 with every group and permute along the same axes of a larger mesh."""
    ranks = np.arange(np.prod(sizes)).reshape(sizes)

    def groups(axes: list[int]) -> str:
        width = int(np.prod([sizes[axis] for axis in axes]))
        return "replica_groups=" + braces(np.moveaxis(ranks, axes, range(3 - len(axes), 3)).reshape(-1, width))

    def numbers(printed: str) -> list[int]:
        return [int(number) for number in printed.split(",")]

    def rows(printed: str) -> np.ndarray:
        return np.array([numbers(row) for row in printed.split("},{")])

    def replaced(found: re.Match[str]) -> str:
        if found["axis"]:
            return groups([int(found["axis"])])
        if found["dims"]:
            shape = numbers(found["shape"])
            order = numbers(found["order"]) if found["order"] else list(range(len(shape)))
            return groups(varying(np.arange(8).reshape(shape).transpose(order).reshape(numbers(found["dims"]))))
        if found["groups"]:
            return groups(varying(rows(found["groups"])))
        axes = varying(rows(found["pairs"]))
        moved = np.roll(ranks, [-1] * len(axes), axes)
        return "source_target_pairs=" + braces(np.stack([ranks.ravel(), moved.ravel()], axis=1))

    return PRINTED.sub(replaced, text).replace("num_partitions=8", f"num_partitions={ranks.size}")


def least_seconds(run: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return min(taken)


class Bench:
    def __init__(self, repeats: int) -> None:
        self.repeats = repeats

    def seconds(self, text: str, slice_name: str, placements: list[list[int]]) -> float:
        """Of all placements together."""

        def run(which: list[list[int]]) -> Callable[[], object]:
            return lambda: _core.score_many(text, "", "", slice_name, which, LAYERS, "code")

        return least_seconds(run(placements), self.repeats) - least_seconds(run([]), self.repeats)

    def axis_orders(
        self, slice_name: str, mesh: dict[str, int], ordered: list[str]
    ) -> tuple[list[list[int]], int, float]:
        """Device orders, how many there were before symmetry and signature, and seconds to find them."""
        ids = {(tuple(chip), core): i for i, (chip, core) in enumerate(_core.slice_devices(slice_name))}

        def find() -> str:
            return str(_core.distinct_axis_orders(json.dumps(mesh), slice_name, list(mesh), ordered))

        found = json.loads(find())
        orders = [[ids[tuple(chip), 0] for chip in placement["coordinates"]] for placement in found["placements"]]
        return orders, int(found["axis_orders"]), least_seconds(find, 1)

    def program(self, name: str, count: int) -> dict[str, float]:
        chips = len(_core.slice_devices(PROGRAMS[name]))
        rng = random.Random(0)
        shuffled = [rng.sample(range(chips), chips) for _ in range(count)]
        each = self.seconds(recorded(name), PROGRAMS[name], shuffled) / count
        return {"chips": chips, "us_a_placement": round(1e6 * each, 1), "placements_a_second": round(1 / each)}

    def grown(self, slice_name: str, ordered: list[str]) -> dict[str, object]:
        sizes = GROWTH[slice_name]
        text = stretched(recorded("flash_d2c2t2"), sizes)
        orders, before, finding = self.axis_orders(slice_name, dict(zip(AXES, sizes, strict=True)), ordered)
        scoring = self.seconds(text, slice_name, orders)
        return {
            "slice": slice_name,
            "chips": int(np.prod(sizes)),
            "mesh": dict(zip(AXES, sizes, strict=True)),
            "ordered": ordered,
            "axis_orders": before,
            "distinct": len(orders),
            "us_a_placement": round(1e6 * scoring / len(orders), 1),
            "seconds": round(finding + scoring, 3),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placements", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    bench = Bench(arguments.repeats)
    programs = {name: bench.program(name, arguments.placements) for name in PROGRAMS}
    growth = [bench.grown(slice_name, ordered) for ordered, slice_name in itertools.product(([], ["context"]), GROWTH)]
    limits = {"us_a_placement": LIMIT_US, "seconds": LIMIT_SECONDS}
    print(json.dumps({"cpus": os.cpu_count(), "limits": limits, "programs": programs, "growth": growth}, indent=2))
    first = programs["flash_d2c8_4x4"]["us_a_placement"]
    return 0 if first < LIMIT_US and float(str(growth[-1]["seconds"])) < LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
