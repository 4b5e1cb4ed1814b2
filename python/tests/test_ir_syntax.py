"""Every notation of HLO, read as XLA's own reader reads it: its serialized module is decoded and compared whole."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hlo_syntax import GROUPS, TEXTS

from aoizora import _core

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "hlo"
HLO = sorted(path.name for path in DATA.glob("*.hlo*.txt.gz"))

# xla/xla_data.proto, PrimitiveType.
DTYPES = dict(
    zip(
        range(1, 34),
        [
            "pred",
            "s8",
            "s16",
            "s32",
            "s64",
            "u8",
            "u16",
            "u32",
            "u64",
            "f16",
            "f32",
            "f64",
            "tuple",
            "opaque",
            "c64",
            "bf16",
            "token",
            "c128",
            "f8e5m2",
            "f8e4m3fn",
            "s4",
            "u4",
            "f8e4m3b11fnuz",
            "f8e5m2fnuz",
            "f8e4m3fnuz",
            "s2",
            "u2",
            "f8e4m3",
            "f8e3m4",
            "s1",
            "u1",
            "f4e2m1fn",
            "f8e8m0fnu",
        ],
        strict=True,
    )
)
TUPLE, BUFFER = 13, 34


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message in protobuf's wire format: int or bytes."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
            continue
        size = 8 if tag & 7 == 1 else 4
        if tag & 7 == 2:
            size, at = varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size


def message(data: bytes) -> dict[int, list[Any]]:
    out: dict[int, list[Any]] = {}
    for number, value in fields(data):
        out.setdefault(number, []).append(value)
    return out


def integers(values: list[Any]) -> list[int]:
    """A repeated field of integers, packed or not."""
    out: list[int] = []
    for value in values:
        if isinstance(value, int):
            out.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = varint(value, at)
            out.append(one)
    return [value - 2**64 if value >= 2**63 else value for value in out]


def leaves(shape: bytes) -> list[list[Any]]:
    """The arrays of a ShapeProto: element_type 2, dimensions 3, tuple_shapes 4. Without a bound a size is -2^63."""
    of = message(shape)
    dtype = of.get(2, [0])[0]
    if dtype in (TUPLE, BUFFER):
        return [leaf for inner in of.get(4, []) for leaf in leaves(inner)]
    dims = integers(of.get(3, []))
    return [[DTYPES[dtype], [1 if dim == -(2**63) else dim for dim in dims]]]


def xla_graph(text: str) -> dict[str, dict[str, tuple[Any, ...]]]:
    """{computation: {instruction: (opcode, leaves, operands, called)}} of XLA's HloModuleProto."""
    hlo: Any = pytest.importorskip("jaxlib._hlo")
    module = message(hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    computations = [message(data) for data in module[3]]
    names = {of[5][0] if 5 in of else 0: of[1][0].decode() for of in computations}
    graph = {}
    for of in computations:
        instructions = [message(data) for data in of[2]]
        ids = {i.get(35, [0])[0]: i[1][0].decode() for i in instructions}
        graph[of[1][0].decode()] = {
            i[1][0].decode(): (
                i[2][0].decode(),
                leaves(i[3][0]),
                [ids[operand] for operand in integers(i.get(36, []))],
                sorted(names[called] for called in integers(i.get(38, []))),
            )
            for i in instructions
        }
    return graph


def our_graph(text: str) -> dict[str, dict[str, tuple[Any, ...]]]:
    computations = json.loads(_core.read_hlo(text).graph())["computations"]
    return {
        c["name"]: {
            i["name"]: (
                i["opcode"],
                i["types"],
                [name for name, _ in i["operands"]],
                sorted(computations[called]["name"] for called in i["called"]),
            )
            for i in c["instructions"]
        }
        for c in computations
    }


NATIVE = ("all-gather", "all-reduce", "collective-permute", "copy", "send", "recv", "async")


def assert_same(ours: dict[str, dict[str, tuple[Any, ...]]], theirs: dict[str, dict[str, tuple[Any, ...]]]) -> None:
    """Equal, but that XLA puts a computation of its own behind an async operation printed short: "slice-start"."""
    for name, instructions in ours.items():
        assert set(instructions) == set(theirs[name])
        for key, (opcode, types, operands, called) in instructions.items():
            expected = theirs[name][key]
            base, _, ending = opcode.rpartition("-")
            if ending in ("start", "update", "done") and base not in NATIVE:
                assert expected[0] == f"async-{ending}"
                assert (types, operands) == expected[1:3]
            else:
                assert (opcode, types, operands, called) == expected, f"{name}/{key}"
    wrapped = set(theirs) - set(ours)
    short = {key for c in ours.values() for key, i in c.items() if i[0].endswith("-start")}
    assert len(wrapped) <= len(short)


@pytest.mark.parametrize("name", TEXTS | GROUPS)
def test_reads_what_xla_reads(name: str) -> None:
    text = (TEXTS | GROUPS)[name]
    assert_same(our_graph(text), xla_graph(text))


@pytest.mark.parametrize("name", HLO)
def test_recorded_programs_read_whole(name: str) -> None:
    text = gzip.decompress((DATA / name).read_bytes()).decode()
    assert_same(our_graph(text), xla_graph(text))


@pytest.mark.parametrize("name", TEXTS | GROUPS)
def test_reads_what_xla_prints(name: str) -> None:
    """XLA's own print of what it read is the same program to us."""
    hlo: Any = pytest.importorskip("jaxlib._hlo")
    options = hlo.HloPrintOptions()
    options.print_large_constants = True  # XLA does not read a tuple's constant that it left out
    printed = hlo.hlo_module_from_text((TEXTS | GROUPS)[name]).to_string(options)
    assert_same(our_graph(printed), xla_graph(printed))


def xla_groups(text: str) -> list[list[list[int]]]:
    """Groups of each collective: 87 lists, 92 an iota, 93 a mesh and axes of it, 49 lists as they were before 2024."""
    hlo: Any = pytest.importorskip("jaxlib._hlo")
    out = []
    for data in message(hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())[3]:
        for instruction in map(message, message(data)[2]):
            if 92 in instruction:
                iota = message(instruction[92][0])
                ids = np.arange(np.prod(integers(iota[3]))).reshape(integers(iota[3])).transpose(integers(iota[4]))
                out.append(ids.reshape(iota[1][0], iota[2][0]).tolist())
            elif 93 in instruction:
                out.append(mesh_groups(instruction[93][0]))
            elif 87 in instruction or 49 in instruction:
                lists = message(instruction[87][0])[1] if 87 in instruction else instruction[49]
                out.append([integers(message(group)[1]) for group in lists])
    return out


def mesh_groups(data: bytes) -> list[list[int]]:
    """A mesh (axes 1, devices 2 or as an iota 3) and axes of it (axis 1, sub-axis 2: size before it, its size)."""
    mesh = message(message(data)[1][0])
    sizes = [message(axis)[2][0] for axis in mesh[1]]
    ids = np.arange(np.prod(sizes))
    if 2 in mesh:
        ids = np.array(integers(mesh[2]))
    elif 3 in mesh:
        iota = message(mesh[3][0])
        ids = ids.reshape(integers(iota[1])).transpose(integers(iota[2])).ravel()
    # Each axis as (outside, part, inside); what is named goes last, in the order of the names.
    named = []
    for reference in map(message, message(data)[2]):
        axis = reference.get(1, [0])[0]
        part = message(reference[2][0]) if 2 in reference else {1: [1], 2: [sizes[axis]]}
        named.append((axis, part[1][0], part[2][0]))
    shape: list[int] = []
    last = []
    for axis, size in enumerate(sizes):
        before = 1
        for index, (_, pre, part) in sorted(
            ((index, one) for index, one in enumerate(named) if one[0] == axis), key=lambda item: item[1][1]
        ):
            shape += [pre // before, part]
            last.append((index, len(shape) - 1))
            before = pre * part
        shape.append(size // before)
    order = [position for _, position in sorted(last)]
    rest = [k for k in range(len(shape)) if k not in order]
    count = int(np.prod([shape[k] for k in rest]))
    return [[int(i) for i in row] for row in ids.reshape(shape).transpose(rest + order).reshape(count, -1)]


@pytest.mark.parametrize("name", GROUPS)
def test_groups_equal_xlas(name: str) -> None:
    text = GROUPS[name]
    found = [c["replica_groups"] for c in json.loads(_core.inspect(text))["collectives"]]
    assert found == xla_groups(text)
