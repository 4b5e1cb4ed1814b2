"""Cycles that the compiler gave a fusion in one program, lent to the same fusion of another.

Only code generation prints estimated_cycles; it costs tens of seconds a program, the HLO passes one. The same fusions
come back in many shardings, so their cycles are kept under a fingerprint: a digest of the fused computation as a tree
from its root, each node its opcode, type with layout and memory space, attributes that shape its work (dimensions,
windows, slices...) and operands, a parameter its number and type; and of the types the fusion reads and writes. Names,
metadata, backend_config, channels and the order of the text are not in it. An instruction outside of fusions has the
fingerprint of its own node.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# "  ROOT %name = TYPE opcode(" : the type is read by hand, tuples nest.
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_COMMENT = re.compile(r"/\*.*?\*/")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNSET = 2**63 - 1
_IGNORED = frozenset({"metadata", "backend_config", "channel_id", "sharding", "frontend_attributes", "kind"})
_CALLED = frozenset({"calls", "to_apply"})


@dataclass(frozen=True)
class Instruction:
    """One line of HLO text, as far as the fingerprint looks."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    is_root: bool
    line: int


@dataclass(frozen=True)
class Coverage:
    """How much of a program's fusions got lent cycles."""

    fusions: int
    lent: int

    @property
    def share(self) -> float:
        """Of the fusions, from 0 to 1."""
        return self.lent / self.fusions if self.fusions else 0.0


def known_cycles(texts: Iterable[str]) -> dict[str, int]:
    """Cycles by fingerprint over code-generated programs. Where two programs differ, the mean, rounded."""
    sums: dict[str, tuple[int, int]] = {}
    for text in texts:
        lines = text.splitlines()
        for computation in (reader := _Reader(lines)).computations.values():
            for instruction in computation:
                found = _CYCLES.search(lines[instruction.line])
                if found is None or int(found[1]) == _UNSET or instruction.opcode == "custom-call":
                    continue
                key = reader.fingerprint(instruction, computation)
                total, count = sums.get(key, (0, 0))
                sums[key] = (total + int(found[1]), count + 1)
    return {key: round(total / count) for key, (total, count) in sums.items()}


def lend(text: str, known: Mapping[str, int]) -> tuple[str, Coverage]:
    """The text of HLO passes with the cycles that are known for its instructions, and how many fusions got some."""
    lines = text.splitlines()
    reader = _Reader(lines)
    fused = reader.called_by_fusions
    fusions = lent = 0
    for name, computation in reader.computations.items():
        if name in fused:
            continue  # what is inside a fusion runs as part of it
        for instruction in computation:
            if instruction.opcode == "custom-call" or _CYCLES.search(lines[instruction.line]):
                continue
            cycles = known.get(reader.fingerprint(instruction, computation))
            # What only starts or ends a collective has no cycles to get.
            counted = instruction.opcode == "fusion" and not instruction.name.startswith("async-collective-")
            fusions += counted
            if cycles is None:
                continue
            lent += counted
            lines[instruction.line] = _with_cycles(lines[instruction.line], cycles)
    return "\n".join(lines) + "\n", Coverage(fusions, lent)


def _with_cycles(line: str, cycles: int) -> str:
    config = f'"window_config":{{"estimated_cycles":"{cycles}"}}'
    head, mark, rest = line.partition("backend_config={")
    if not mark:
        return f"{line}, backend_config={{{config}}}"
    return f"{head}{mark}{config}{'' if rest.startswith('}') else ','}{rest}"


class _Reader:
    """Computations of one HLO text and the fingerprints of their instructions."""

    def __init__(self, lines: list[str]) -> None:
        self.computations: dict[str, list[Instruction]] = {}
        self.called_by_fusions: set[str] = set()
        self._trees: dict[str, str] = {}
        self._types: dict[str, dict[str, str]] = {}
        current: list[Instruction] | None = None
        name = ""
        for number, line in enumerate(lines):
            if line.rstrip() == "}":  # a kernel's configuration may go over lines that start with more
                current = None
            elif current is None:
                head = _COMPUTATION.match(line)
                if head:
                    name = head[1]
                    current = self.computations.setdefault(name, [])
            elif (instruction := _read(line, number)) is not None:
                current.append(instruction)
                if instruction.opcode == "fusion":
                    self.called_by_fusions.update(v.lstrip("%") for k, v in instruction.attributes if k in _CALLED)
        for name, computation in self.computations.items():
            self._types[name] = {instruction.name: instruction.type for instruction in computation}

    def fingerprint(self, instruction: Instruction, computation: list[Instruction]) -> str:
        """Of an instruction with what it calls and the types it reads; not of where its operands come from."""
        types = self._type_table(computation)
        return _digest(self._node(instruction), *(types.get(operand, "?") for operand in instruction.operands))

    def _type_table(self, computation: list[Instruction]) -> dict[str, str]:
        key = f"\0{id(computation)}"
        if key not in self._types:
            self._types[key] = {instruction.name: instruction.type for instruction in computation}
        return self._types[key]

    def _node(self, instruction: Instruction) -> str:
        parts = [instruction.opcode, instruction.type]
        for key, value in instruction.attributes:
            parts.append(f"{key}={self._tree(value.lstrip('%')) if key in _CALLED else value}")
        if instruction.opcode in ("parameter", "constant"):
            parts += instruction.operands
        return _digest(*parts)

    def _tree(self, name: str) -> str:
        """Of a computation: the digest of its root, each node with the digests of its operands."""
        if name in self._trees:
            return self._trees[name]
        self._trees[name] = "circle"  # HLO has none; a damaged text may
        digests: dict[str, str] = {}
        root = ""
        for instruction in self.computations.get(name, []):  # a value stands before its uses
            operands = () if instruction.opcode in ("parameter", "constant") else instruction.operands
            root = digests[instruction.name] = _digest(
                self._node(instruction), *(digests.get(operand, "?") for operand in operands)
            )
            if instruction.is_root:
                break
        self._trees[name] = root
        return root


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=12).hexdigest()


def _closing(text: str, start: int) -> int:
    """Position after the bracket that closes the one at `start`; the text's end where none does."""
    depth = 0
    quoted = False
    for position in range(start, len(text)):
        char = text[position]
        if char == '"' and text[position - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return position + 1
    return len(text)


def _read(line: str, number: int) -> Instruction | None:
    head = _INSTRUCTION.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    cut = min((at for at in (rest.find(", metadata={"), rest.find(", backend_config=")) if at >= 0), default=len(rest))
    rest = _COMMENT.sub("", rest[:cut])  # what follows either is never part of the fingerprint
    end = _closing(rest, 0) if rest.startswith("(") else rest.find(" ")
    bracket = rest.find("(", end)
    if end < 0 or bracket < 0:
        return None
    after = _closing(rest, bracket)
    operands = tuple(part.strip().split(" ")[-1].lstrip("%") for part in _split(rest[bracket + 1 : after - 1]))
    attributes = []
    for part in _split(rest[after:].removeprefix(", ")):
        key, _, value = part.strip().partition("=")
        if key and key not in _IGNORED:
            attributes.append((key, value))
    return Instruction(
        head[2], rest[:end], rest[end:bracket].strip(), operands, tuple(sorted(attributes)), bool(head[1]), number
    )


def _split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, start, position = [], 0, 0
    while position < len(text):
        if text[position] in "([{":
            position = _closing(text, position)
            continue
        if text[position] == ",":
            parts.append(text[start:position])
            start = position + 1
        position += 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]
