"""Cycles that the compiler gave a fusion in one program, lent to the same of another (aoizora/planner/cycles.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aoizora import _core
from aoizora.errors import ParseError


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
    found: dict[str, list[int]] = {}
    for text in texts:
        for fingerprint, cycles in _core.cycles_of(text).items():
            found.setdefault(fingerprint, []).append(cycles)
    return {fingerprint: round(sum(each) / len(each)) for fingerprint, each in found.items()}


def lend(text: str, known: Mapping[str, int]) -> tuple[str, Coverage]:
    """The text of HLO passes with the cycles that are known for its instructions, and how many fusions got some. A text
    that does not read gets none."""
    try:
        lent, fusions, got = _core.lend_cycles(text, dict(known))
    except ParseError:
        return text, Coverage(0, 0)
    return lent, Coverage(fusions, got)
