"""What SimGrid says of the simulation and of the planner's costs."""

from __future__ import annotations

import gzip
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aoizora import _core
from judges.agreement import Compared, compare_collectives, compare_programs, simgrid_times
from judges.cases import KINDS, Collective, program_text, random_cases
from judges.table import Table, percent

TOLERANCE = 0.005
SEED = 20
RECORDED = Path(__file__).parents[1] / "tests" / "data" / "hlo"


def planner_seconds(collective: Collective, slice_path: str, devices: Sequence[int]) -> float:
    """The planner's physical cost Ψ of one collective under a placement."""
    placed = [[devices[rank] for rank in group] for group in collective.groups]
    text = program_text([Collective(collective.kind, placed, collective.payload_bytes, waits=True)], len(devices))
    ranked = json.loads(_core.rank(text, slice_path, json.dumps([["all", len(devices)]])))
    return float(sum(entry["default_seconds"] for entry in ranked["collectives"]))


def _row(what: str, pairs: Sequence[Compared]) -> list[str]:
    off = [abs(pair.difference) for pair in pairs]
    return [what, str(len(pairs)), percent(statistics.mean(off), 3)[1:], percent(max(off), 3)[1:]]


def _late(what: str, pairs: Sequence[Compared]) -> list[str]:
    worst = max(pairs, key=lambda pair: abs(pair.difference))
    return [f"{what}: {worst.what}, {percent(worst.difference)}"] if abs(worst.difference) > TOLERANCE else []


def agreement(judge: Path, programs: int, each_kind: int) -> Table:
    """Every kind alone, then random programs with several collectives in flight."""
    about = (
        "Seconds of the library's simulation against SimGrid's on random slices (shape, wraparound, cores, rates, "
        f"limits of a flow, latencies, ring directions; seed {SEED}), random groups, placements and payloads of 10 kB "
        "to 100 MB. Programs start one to four collectives at different times. SimGrid's max-min model (CM02, latency "
        f"waited out before the bytes) is the judge, at most {100 * TOLERANCE:g} % off allowed; L07 shares a link by "
        "another rule (fair by bottleneck) and is there to see how much that matters. The last columns are the "
        "planner's own cost of a collective alone, which may be coarser."
    )
    table = Table("SimGrid: seconds", about, ["compared", "cases", "mean off", "worst off", "Ψ mean", "Ψ worst"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in KINDS:
            singles: list[tuple[Collective, str, list[int]]] = []
            for case in random_cases(each_kind, SEED + 1 + KINDS.index(kind), folder, kinds=[kind], most=1):
                path = folder / f"{kind}{len(singles)}.json"
                Path(case.slice).rename(path)
                singles.append((case.collectives[0], str(path), case.devices))
            pairs = compare_collectives(judge, singles)
            costs = [planner_seconds(*single) for single in singles]
            off = [
                abs(cost / pair.judge_seconds - 1)
                for cost, pair in zip(costs, pairs, strict=True)
                if pair.judge_seconds > 0
            ]
            table.rows.append([*_row(kind, pairs), percent(statistics.mean(off))[1:], percent(max(off))[1:]])
            table.failures.extend(_late(kind, pairs))
        cases = random_cases(programs, SEED, folder)
        pairs = compare_programs(judge, cases)
        table.rows.append([*_row("random programs", pairs), "", ""])
        table.failures.extend(_late("random programs", pairs))
        by_bottleneck = compare_programs(judge, cases, "L07")
        table.rows.append([*_row("the same with L07", by_bottleneck), "", ""])
        within = sum(abs(pair.difference) <= TOLERANCE for pair in by_bottleneck)
        table.notes.append(f"L07 is within {100 * TOLERANCE:g} % in {within} of {programs} programs.")
    return table


MESHES = {
    "flash_c8": {"context": 8},
    "ulysses_c8": {"context": 8},
    "flash_d2c4": {"data": 2, "context": 4},
    "ring_d2c4": {"data": 2, "context": 4},
    "flash_f2c4": {"fsdp": 2, "context": 4},
    "flash_d2c2t2": {"data": 2, "context": 2, "tensor": 2},
    "flash_d2c8_4x4": {"data": 2, "context": 8},
}


def _inversions(judged: Sequence[float], ours: Sequence[float], apart: float = 1e-3) -> tuple[int, int]:
    """Pairs of placements that SimGrid tells apart, and how many of them stand the other way round."""
    told = wrong = 0
    for a in range(len(judged)):
        for b in range(a):
            if abs(judged[a] / judged[b] - 1) > apart:
                told += 1
                wrong += (judged[a] - judged[b]) * (ours[a] - ours[b]) <= 0
    return told, wrong


def program_order(judge: Path, most_placements: int = 12) -> Table:
    """Compiled programs under their distinct placements."""
    about = (
        "Compiled Wan programs (tests/data/hlo, as they were recorded) under distinct axis orders, at most "
        f"{most_placements} each, seeded: how far the step spreads from the best placement to the worst, how far the "
        "simulation and the planner's Q2 are off at most, and (last two columns) how many of the pairs that SimGrid "
        "tells apart by more than 0.1 % stand the other way round. Judge and library share the reader of the program "
        "and the compute times."
    )
    header = ["program", "orders", "spread", "sim. off", "Q2 off", "sim.", "Q2"]
    table = Table("SimGrid: order of placements", about, header)
    rng = random.Random(SEED)
    for stem, mesh in MESHES.items():
        text = gzip.decompress((RECORDED / f"{stem}.hlo.txt.gz").read_bytes()).decode()
        slice_name = "v5e:4x4" if stem.endswith("4x4") else "v5e:2x4"
        dims = json.loads(_core.slice_json(slice_name))["dims"]
        found = json.loads(_core.distinct_axis_orders(json.dumps(mesh), slice_name, list(mesh), list(mesh)))[
            "placements"
        ]
        chosen = found if len(found) <= most_placements else [found[0], *rng.sample(found[1:], most_placements - 1)]
        orders = [[x * dims[1] + y for x, y in placement["coordinates"]] for placement in chosen]
        schedules = [
            {"schedule": json.loads(_core.schedule(text, "", "", slice_name, order, 1, "code"))} for order in orders
        ]
        judged = [result["step_seconds"] for result in simgrid_times(judge, schedules)]
        ours = [step for step, _ in _core.simulate_many(text, "", "", slice_name, orders, 1, "code")]
        planner = [
            json.loads(_core.score(text, "", "", slice_name, order, 1, "code"))["step_seconds"] for order in orders
        ]
        told, wrong = _inversions(judged, ours)
        _, planner_wrong = _inversions(judged, planner)
        off = max(abs(a / b - 1) for a, b in zip(ours, judged, strict=True))
        planner_off = max(abs(a / b - 1) for a, b in zip(planner, judged, strict=True))
        spread = percent(max(judged) / min(judged) - 1)[1:]
        table.rows.append(
            [
                stem,
                str(len(orders)),
                spread,
                percent(off)[1:],
                percent(planner_off)[1:],
                f"{wrong} of {told}",
                f"{planner_wrong} of {told}",
            ]
        )
        if off > TOLERANCE or wrong:
            table.failures.append(f"{stem}: simulation {percent(off)} off, {wrong} pairs the other way round")
    return table
