"""The microbenchmarks of a slice, and what the planner holds each of them for: both ask the same of the devices."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aoizora import _core

COLLECTIVES = ("collective-permute", "all-gather", "all-reduce", "reduce-scatter", "all-to-all")
KERNELS = ("matmul", "attention")

TILE_BYTES = 4 * 8 * 128
"""Payloads are whole tiles of a TPU's memory a device: of others XLA:TPU makes another collective."""

HEADS, QUERIES, HEAD_DIM = 8, 2048, 128
"""Of the attention kernel's microbenchmarks; its blocks are the planner's default, 512."""

Groups = tuple[tuple[int, ...], ...]


class Case(NamedTuple):
    """One microbenchmark."""

    kind: str
    """HLO's opcode of a collective, or a kernel."""
    what: str
    size: int
    """Payload in bytes as the planner counts it; of a matmul the side of its square matrices, of attention the keys."""
    groups: Groups = ()
    """Of a collective: devices in the slice's order, which are its ranks; of a permute the pairs."""

    @property
    def size_text(self) -> str:
        if self.kind == "matmul":
            return f"{self.size}^3"
        if self.kind == "attention":
            return f"{self.size} keys"
        return f"{self.size / 1e6:.3g} MB"


def collective_cases(slice_json: dict[str, Any], kinds: Iterable[str], sizes_bytes: Sequence[int]) -> list[Case]:
    """Every kind over groups that keep their links to themselves and over groups that share them."""
    shapes = _group_shapes(slice_json)
    result = []
    for kind in kinds:
        over = _permutes(slice_json) if kind == "collective-permute" else shapes
        if kind in ("reduce-scatter", "all-to-all"):  # they share links as the others do: the first and the last
            over = {what: shapes[what] for what in [*list(shapes)[:1], *list(shapes)[-1:]]}
        for (what, groups), size in itertools.product(over.items(), sorted(sizes_bytes)):
            unit = TILE_BYTES * (1 if kind == "collective-permute" else len(groups[0]))
            case = Case(kind, what, max(1, round(size / unit)) * unit, groups)
            if case not in result:
                result.append(case)
    return result


def _places(slice_json: dict[str, Any]) -> list[tuple[int, ...]]:
    """Coordinates of every device, the core last, in the slice's order."""
    return list(itertools.product(*map(range, slice_json["dims"]), range(slice_json.get("cores_per_chip", 1))))


def _name(dimension: int) -> str:
    return "xyz"[dimension] if dimension < 3 else f"dimension {dimension}"


def _group_shapes(slice_json: dict[str, Any]) -> dict[str, Groups]:
    """Lines along each dimension, the longest first; every other chip of that one; all devices. Groups of one shape
    cover all devices.

    Cores of a chip are never in one group: their link is another, and has no microbenchmark.
    """
    dims, places = slice_json["dims"], _places(slice_json)

    def split(key: Any) -> Groups:
        groups: dict[Any, list[int]] = {}
        for device, place in enumerate(places):
            groups.setdefault(key(place), []).append(device)
        return tuple(map(tuple, groups.values()))

    long = max(range(len(dims)), key=lambda d: dims[d])
    shapes = {
        f"lines of {size} along {_name(d)}": split(lambda place, d=d: (*place[:d], *place[d + 1 :]))
        for size, d in sorted(((size, d) for d, size in enumerate(dims)), key=lambda pair: (-pair[0], pair[1]))
        if size > 1
    }
    if dims[long] >= 4 and dims[long] % 2 == 0:
        shapes[f"every other along {_name(long)}"] = split(
            lambda place: (*place[:long], place[long] % 2, *place[long + 1 :])
        )
    if len(shapes) > 1 and sum(size > 1 for size in dims) > 1:
        shapes[f"all {math.prod(dims)} chips"] = split(lambda place: place[-1])
    return shapes


def _permutes(slice_json: dict[str, Any]) -> dict[str, Groups]:
    """Along the longest dimension: one alone over one hop and over the most, and two that share a link."""
    dims, places = slice_json["dims"], _places(slice_json)
    long = max(range(len(dims)), key=lambda d: dims[d])
    size = dims[long]
    if size < 2:
        return {}

    def at(position: int) -> int:
        place = [0] * len(places[0])
        place[long] = position
        return places.index(tuple(place))

    def pairs(*ends: tuple[int, int]) -> Groups:
        return tuple((at(a), at(b)) for a, b in ends)

    far = size // 2 if slice_json["wraps"][long] and size > 2 else size - 1
    result = {"alone, 1 hop": pairs((0, 1))}
    if far > 1:
        result[f"alone, {far} hops"] = pairs((0, far))
    if size >= 4:
        result["two on a link"] = pairs((0, 2), (1, 3))
    return result


def kernel_cases(kinds: Iterable[str], on_tpu: bool) -> list[Case]:
    """A CPU takes smaller matrices, and has no attention kernel."""
    result = []
    if "matmul" in kinds:
        result += [Case("matmul", "square", side) for side in ((2048, 4096) if on_tpu else (256, 512))]
    if "attention" in kinds and on_tpu:
        what = f"{HEADS} heads, {QUERIES} queries"
        result += [Case("attention", what, keys) for keys in (2048, 8192)]
    return result


_REDUCER = """%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


def _braces(groups: Groups) -> str:
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


def _instruction(case: Case, number: int) -> tuple[str, str, str]:
    """Operand's type, result's type and the instruction, without its operand's name."""
    words, kind = case.size // 4, case.kind
    whole, part = f"f32[{words}]", f"f32[{words // len(case.groups[0])}]"
    if kind == "collective-permute":
        return whole, whole, f"channel_id={number}, source_target_pairs={_braces(case.groups)}"
    groups = f"channel_id={number}, replica_groups={_braces(case.groups)}"
    if kind == "all-gather":
        return part, whole, f"{groups}, dimensions={{0}}, use_global_device_ids=true"
    if kind == "reduce-scatter":
        return whole, part, f"{groups}, dimensions={{0}}, use_global_device_ids=true, to_apply=%sum"
    if kind == "all-reduce":
        return whole, whole, f"{groups}, use_global_device_ids=true, to_apply=%sum"
    return whole, whole, f"{groups}, dimensions={{0}}"


def _module(body: Sequence[str], devices: int, called: str = "") -> str:
    lines = "\n".join(f"  {line}" for line in body)
    head = f"HloModule microbenchmark, is_scheduled=true, num_partitions={devices}"
    return f"{head}\n\n{called}\nENTRY %main {{\n{lines}\n}}\n"


def _collectives_text(cases: Sequence[Case], devices: int) -> str:
    """All of them in one program, one after the other: the planner prices each as alone."""
    made = [_instruction(case, number) for number, case in enumerate(cases, 1)]
    body = [f"%p{k} = {operand} parameter({k})" for k, (operand, _, _) in enumerate(made)]
    body += [f"%c{k} = {made[k][1]} {case.kind}(%p{k}), {made[k][2]}" for k, case in enumerate(cases)]
    types, names = ", ".join(result for _, result, _ in made), ", ".join(f"%c{k}" for k in range(len(cases)))
    return _module([*body, f"ROOT %all = ({types}) tuple({names})"], devices, _REDUCER)


def _kernel_text(case: Case, devices: int) -> str:
    if case.kind == "matmul":
        type_ = f"bf16[{case.size},{case.size}]"
        product = f"ROOT %m = {type_} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        return _module([f"%a = {type_} parameter(0)", f"%b = {type_} parameter(1)", product], devices)
    queries, keys = (f"bf16[{HEADS},{length},{HEAD_DIM}]" for length in (QUERIES, case.size))
    kernel = f'ROOT %o = {queries} custom-call(%q, %k, %v), custom_call_target="tpu_custom_call"'
    operands = [f"%q = {queries} parameter(0)", f"%k = {keys} parameter(1)", f"%v = {keys} parameter(2)"]
    return _module([*operands, kernel], devices)


def planned_seconds(cases: Sequence[Case], descriptor: dict[str, Any]) -> np.ndarray:
    """What the planner's own costs say of each: Ψ of a collective, its compute time of a kernel."""
    devices = len(_places(descriptor))
    seconds = np.zeros(len(cases))
    collectives = [k for k, case in enumerate(cases) if case.kind in COLLECTIVES]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        Path(file.name).write_text(json.dumps(descriptor))

        def priced(text: str) -> dict[str, Any]:
            score: dict[str, Any] = json.loads(_core.score(text, "", "", file.name, list(range(devices)), 1, "passes"))
            return score

        if collectives:
            costs = priced(_collectives_text([cases[k] for k in collectives], devices))["collectives"]
            of = {cost["name"]: cost["seconds"] for cost in costs}
            seconds[collectives] = [of[f"c{number}"] for number in range(len(collectives))]
        for k, case in enumerate(cases):
            if case.kind in KERNELS:
                seconds[k] = priced(_kernel_text(case, devices))["step_seconds"]
    return seconds
