"""Collectives, and programs of collectives, that both the library and a judge can time."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Groups = list[list[int]]

KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclass(frozen=True)
class Collective:
    """One collective over ranks; for a permute `groups` are its pairs."""

    kind: str
    groups: Groups
    payload_bytes: int
    """B of docs/simulation.md, before it is rounded to whole words a member."""
    after_seconds: float = 0.0
    """The core computes so long before it starts this one."""
    waits: bool = False
    """The core waits for the end before it goes on."""

    @property
    def payload_words(self) -> int:
        """Payload in f32, a multiple of the group's size."""
        size = 1 if self.kind == "collective-permute" else len(self.groups[0])
        return max(1, self.payload_bytes // (4 * size)) * size

    @property
    def bytes(self) -> int:
        """Payload as the program prints it."""
        return 4 * self.payload_words


@dataclass(frozen=True)
class Case:
    """Collectives of one program under one placement on one slice."""

    slice: str
    devices: list[int]
    collectives: list[Collective] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The program as HLO text: starts and computations in this order, then the ends."""
        return program_text(self.collectives, len(self.devices))


_REDUCER = """%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


def _braces(groups: Groups) -> str:
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


def _instruction(collective: Collective, channel: int, operand: str) -> tuple[str, str, str]:
    """Operand's shape, result's shape and the instruction of a collective."""
    size = 1 if collective.kind == "collective-permute" else len(collective.groups[0])
    words = collective.payload_words
    whole, part = f"f32[{words}]", f"f32[{words // size}]"
    groups = f"channel_id={channel}, replica_groups={_braces(collective.groups)}"
    kind = collective.kind
    if kind == "all-gather":
        return part, whole, f"all-gather({operand}), {groups}, dimensions={{0}}, use_global_device_ids=true"
    if kind == "reduce-scatter":
        return (
            whole,
            part,
            f"reduce-scatter({operand}), {groups}, dimensions={{0}}, use_global_device_ids=true, to_apply=%sum",
        )
    if kind == "all-reduce":
        return whole, whole, f"all-reduce({operand}), {groups}, use_global_device_ids=true, to_apply=%sum"
    if kind == "all-to-all":
        return whole, whole, f"all-to-all({operand}), {groups}, dimensions={{0}}"
    if kind == "ragged-all-to-all":
        return whole, whole, f"ragged-all-to-all({operand}, {operand}, %o, %o, %o, /*index=5*/%o), {groups}"
    if kind == "collective-broadcast":
        return whole, whole, f"collective-broadcast({operand}), {groups}"
    pairs = f"channel_id={channel}, source_target_pairs={_braces(collective.groups)}"
    return whole, whole, f"collective-permute({operand}), {pairs}"


def program_text(collectives: Sequence[Collective], devices: int, hbm_bytes_per_second: float = 819e9) -> str:
    """HLO text: computations and starts in the given order, then the ends of those nobody waited for.

    All operands are parameters: nothing is computed but what takes the time between two starts, a matrix product that
    HBM bounds.
    """
    called = [_REDUCER]
    parameters: list[str] = []
    body: list[str] = []
    ends: list[str] = []
    side = 128
    for k, collective in enumerate(collectives):
        depth = round(collective.after_seconds * hbm_bytes_per_second / (4 * 2 * side))
        if depth > 0:
            parameters += [f"  %x{k} = f32[{side},{depth}]", f"  %y{k} = f32[{depth},{side}]"]
            body.append(
                f"  %c{k} = f32[{side},{side}] dot(%x{k}, %y{k}), "
                "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
            )
        operand, result, instruction = _instruction(collective, k + 1, "%a")
        offsets = "  %o = s32[1] constant({0})\n" if collective.kind == "ragged-all-to-all" else ""
        called.append(
            f"%run{k} (a: {operand}) -> {result} {{\n  %a = {operand} parameter(0)\n{offsets}"
            f"  ROOT %r = {result} {instruction}\n}}\n"
        )
        parameters.append(f"  %p{k} = {operand}")
        body.append(f"  %s{k} = (({operand}), {result}, u32[]) async-start(%p{k}), calls=%run{k}")
        end = f"  %d{k} = {result} async-done(%s{k})"
        (body if collective.waits else ends).append(end)
    read = [f"{parameter} parameter({number})" for number, parameter in enumerate(parameters)]
    names = ", ".join(f"%d{k}" for k in range(len(collectives)))
    shapes = ", ".join(_instruction(collective, 1, "%a")[1] for collective in collectives)
    root = f"  ROOT %all = ({shapes}) tuple({names})"
    entry = "\n".join(["ENTRY %main {", *read, *body, *ends, root, "}"])
    return (
        f"HloModule judged, is_scheduled=true, num_partitions={devices}\n\n" + "\n".join(called) + "\n" + entry + "\n"
    )


def along(sizes: Sequence[int], axes: Sequence[int]) -> Groups:
    """Groups of ranks, row-major over a mesh of these sizes, that differ only along the axes."""
    others = [axis for axis in range(len(sizes)) if axis not in axes]
    strides = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]

    def ranks(over: Sequence[int]) -> list[int]:
        places = itertools.product(*(range(sizes[axis]) for axis in over))
        return [sum(at * strides[axis] for at, axis in zip(place, over, strict=True)) for place in places]

    return [[base + offset for offset in ranks(axes)] for base in ranks(others)]


def ring_pairs(groups: Groups) -> Groups:
    """Pairs of a permute that shifts each group by one."""
    return [[group[k], group[(k + 1) % len(group)]] for group in groups for k in range(len(group)) if len(group) > 1]


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def random_groups(rng: random.Random, devices: int) -> Groups:
    """Groups along axes of a random mesh, or groups of any members."""
    factors = _prime_factors(devices)
    rng.shuffle(factors)
    if rng.random() < 0.7:
        axes = sorted(rng.sample(range(len(factors)), rng.randint(1, len(factors))))
        return along(factors, axes)
    size = 1
    for factor in factors[: rng.randint(1, len(factors))]:
        size *= factor
    order = rng.sample(range(devices), devices)
    return [order[begin : begin + size] for begin in range(0, devices, size)]


def random_collective(rng: random.Random, devices: int, kind: str) -> Collective:
    """A collective of any shape and size."""
    groups = random_groups(rng, devices)
    if kind == "collective-permute":
        groups = ring_pairs(groups)
        if rng.random() < 0.3:
            groups = [[a, b] for a, b in enumerate(rng.sample(range(devices), devices)) if a != b] or [[0, 1]]
    return Collective(
        kind,
        groups,
        int(10 ** rng.uniform(4, 8)),
        after_seconds=rng.choice([0.0, 10 ** rng.uniform(-6, -3)]),
        waits=rng.random() < 0.3,
    )


# Shapes without and with wraparound, a cube and chips of two cores.
SHAPES: tuple[tuple[list[int], list[bool], int], ...] = (
    ([2, 2], [False, False], 1),
    ([2, 4], [False, False], 1),
    ([2, 4], [False, False], 1),
    ([4, 4], [False, False], 1),
    ([1, 6], [False, True], 1),
    ([3, 4], [True, True], 1),
    ([4, 4], [True, True], 1),
    ([2, 2, 3], [False, False, True], 1),
    ([2, 3], [False, False], 2),
)


def random_slice(rng: random.Random) -> dict[str, Any]:
    """A slice descriptor: shape, rates, limits of a flow, latencies, ring directions."""
    dims, wraps, cores = rng.choice(SHAPES)
    hardware: dict[str, Any] = {
        "ici_bytes_per_second": rng.uniform(20e9, 90e9),
        "hop_seconds": rng.choice([0.0, rng.uniform(1e-7, 5e-6)]),
        "collectives": {
            kind: {
                "alpha_seconds": rng.uniform(0, 5e-6),
                "rate_fraction": rng.choice([1.0, rng.uniform(0.3, 1.0)]),
                "flow_bytes_per_second": rng.choice([0.0, rng.uniform(5e9, 50e9)]),
                "ring_directions": rng.choice([0, 1, 2]),
            }
            for kind in KINDS
        },
    }
    if cores > 1:
        hardware["core_bytes_per_second"] = rng.uniform(20e9, 200e9)
    return {
        "base": "v5e:4x4",
        "name": "judged",
        "dims": dims,
        "wraps": wraps,
        "cores_per_chip": cores,
        "hardware": hardware,
    }


def random_cases(count: int, seed: int, folder: Path, kinds: Sequence[str] = KINDS, most: int = 4) -> list[Case]:
    """Seeded cases of one to `most` collectives, each on a slice of its own whose descriptor lies in the folder."""
    rng = random.Random(seed)
    cases = []
    for k in range(count):
        description = random_slice(rng)
        path = folder / f"slice{k}.json"
        path.write_text(json.dumps(description))
        devices = description["cores_per_chip"]
        for size in description["dims"]:
            devices *= size
        placement = rng.choice([list(range(devices)), rng.sample(range(devices), devices)])
        collectives = [random_collective(rng, devices, rng.choice(kinds)) for _ in range(rng.randint(1, most))]
        cases.append(Case(str(path), placement, collectives))
    return cases
