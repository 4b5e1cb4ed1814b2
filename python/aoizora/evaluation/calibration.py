"""How near the model comes to the paper's Table 4, and what each calibration input does to it.

    python -m aoizora.evaluation.calibration STORE

Reads compiled programs of v5e:4x4 from the store (evaluation/sweep.py) and prices them under changed rates. The block
is what the paper measured: two layers and half of entry and exit, by the best plan in the paper's space (gathered K/V
or Ulysses, default compiler options, axis orders).
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aoizora import _core
from aoizora.compiler.store import AnswerStore
from aoizora.evaluation.sweep import FRAMES, SIZES, Workload, job, stage_1
from aoizora.evaluation.tables import BLOCK_MS

SLICE = "v5e:4x4"
SURVIVORS = 63  # of stage 1: what `--top 63` of the sweep asks for (docs/calibration.md)
ALL_TO_ALL_FRACTIONS = (0.3, 0.35, 0.375, 0.4, 0.45, 0.5, 0.6, 0.8)
CORE_EFFICIENCIES = (0.8, 0.82, 0.84, 0.86, 0.88, 0.9, 0.92, 0.94, 0.96, 0.98)

Blocks = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Rates:
    """Changes to a slice: {kind: {"rate_fraction" | "ring_directions": value}}, and numbers of the hardware."""

    name: str
    collectives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    hardware: Mapping[str, float] = field(default_factory=dict)

    def descriptor(self) -> str:
        """A descriptor of SLICE with these rates."""
        slice_ = json.loads(_core.slice_json(SLICE))
        for number, value in self.hardware.items():
            slice_["hardware"][number] = {"value": value, "source": "calibration run"}
        for kind, numbers in self.collectives.items():
            for number, value in numbers.items():
                slice_["hardware"]["collectives"][kind][number] = {"value": value, "source": "calibration run"}
        return json.dumps(slice_)


def _every(**numbers: float) -> dict[str, dict[str, float]]:
    return {kind: dict(numbers) for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")}


VARIANTS = (
    Rates("the product's inputs, nothing fitted"),
    Rates("every kind at 45 GB/s, a group's every port at work", _every(rate_fraction=1.0, ring_directions=0)),
    Rates("every kind at half of that", _every(rate_fraction=0.5, ring_directions=0)),
    Rates("the product's rates, but one ring sent round both ways", _every(ring_directions=2)),
    Rates("the product's rings, but every kind at 45 GB/s", _every(rate_fraction=1.0)),
    Rates("the product's, but all-to-all as fast as a gather", {"all-to-all": {"rate_fraction": 0.95}}),
    Rates("the product's, but all-reduce as fast as a gather", {"all-reduce": {"rate_fraction": 0.95}}),
)


@functools.cache
def _programs(store_path: Path, size: tuple[int, int]) -> list[tuple[Workload, str, str, str]]:
    workload = Workload(SLICE, *size)
    store = AnswerStore(store_path)
    queue = workload.queue(store)
    found = []
    for _, candidate in stage_1(workload, store)[:SURVIVORS]:
        answer = store.get(queue.key(job(candidate, "passes")))
        if answer is not None and answer["outcome"] == "ok":
            found.append((workload, json.dumps(candidate), answer["text"], answer["memory_report"]))
    store.close()
    return found


def block_ms(store_path: Path, rates: Rates, size: tuple[int, int]) -> float:
    """Milliseconds a block of a workload's best plan, as the paper counts; infinite where none is stored."""
    best = math.inf
    hbm_bytes = float(json.loads(_core.slice_json(SLICE))["hardware"]["hbm_bytes"]["value"])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(rates.descriptor())
        file.flush()
        for workload, candidate, text, report in _programs(store_path, size):
            priced: dict[str, Any] = json.loads(
                _core.price(text, report, workload.table_json, candidate, file.name, workload.layers, "passes")
            )
            if priced["hbm_bytes"] > hbm_bytes:
                continue
            for placement in priced["placements"]:
                outside = placement["step_seconds"] - workload.layers * placement["block_seconds"]
                best = min(best, 1e3 * (placement["block_seconds"] + outside / 2))
    return best


def _blocks(arguments: tuple[Path, Rates, tuple[int, int]]) -> float:
    return block_ms(*arguments)


def deviation(blocks: Blocks, sizes: Iterable[tuple[int, int]]) -> float:
    """exp(mean |ln(ours / paper)|) - 1 over the given rows of Table 4."""
    distances = [abs(math.log(blocks[size] / BLOCK_MS[size])) for size in sizes]
    return math.exp(sum(distances) / len(distances)) - 1


def main() -> int:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    store = parser.parse_args().store
    sizes = [(height, frames) for height in SIZES for frames in FRAMES]
    low, high = ([size for size in sizes if size[0] == height] for height in SIZES)
    grids = {
        "rate of all-to-all": [
            Rates(f"all-to-all at {fraction:g}", {"all-to-all": {"rate_fraction": fraction}})
            for fraction in ALL_TO_ALL_FRACTIONS
        ],
        "core efficiency": [
            Rates(f"core efficiency {value:g}", hardware={"core_efficiency": value}) for value in CORE_EFFICIENCIES
        ],
    }
    wanted = [*VARIANTS, *(rates for grid in grids.values() for rates in grid)]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(_blocks, [(store, rates, size) for size in sizes for rates in wanted], chunksize=3))
    blocks = {
        rates.name: {size: found[k * len(wanted) + index] for k, size in enumerate(sizes)}
        for index, rates in enumerate(wanted)
    }
    print("milliseconds a block, v5e:4x4 (paper, Table 4: measured)")
    print("".join(f"{f'{height}p {frames}':>9}" for height, frames in sizes) + f"{'480p':>7}{'720p':>7}{'all':>7}")
    print("".join(f"{BLOCK_MS[size]:9.2f}" for size in sizes) + "   paper")
    for rates in wanted:
        row = blocks[rates.name]
        cells = "".join(f"{row[size]:9.2f}" for size in sizes)
        print(cells + "".join(f"{deviation(row, part):7.1%}" for part in (low, high, sizes)) + f"  {rates.name}")
    for what, grid in grids.items():
        for name, fitted, reported in (("480p", low, high), ("720p", high, low)):
            best = min(grid, key=lambda rates: deviation(blocks[rates.name], fitted))
            print(
                f"{what} fitted on the {name} rows: {best.name}, {deviation(blocks[best.name], fitted):.1%} there, "
                f"{deviation(blocks[best.name], reported):.1%} on the others"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
