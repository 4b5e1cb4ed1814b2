"""Tables that read the same in a terminal of 80 columns and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

WIDTH = 80


@dataclass(frozen=True)
class Table:
    """What one judge said. `rows` hold text, the first column words and the others figures."""

    title: str
    about: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    skipped: str | None = None
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What was further off than the table allows."""

    def lines(self) -> list[str]:
        """As Markdown, padded to columns."""
        result = [f"## {self.title}", "", *textwrap.wrap(self.about, WIDTH), ""]
        if self.skipped is not None:
            return [*result, *textwrap.wrap(f"Not run: {self.skipped}", WIDTH), ""]
        widths = [max(len(row[k]) for row in [self.header, *self.rows]) for k in range(len(self.header))]
        result.append(_line(self.header, widths))
        result.append("| " + " | ".join(["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]) + " |")
        result += [_line(row, widths) for row in self.rows]
        for remark in [*self.notes, *(f"Beyond the tolerance: {failure}." for failure in self.failures)]:
            result += ["", *textwrap.wrap(remark, WIDTH)]
        return [*result, ""]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    others = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "| " + " | ".join([first, *others]) + " |"


def percent(value: float, digits: int = 2) -> str:
    """A relative difference with its sign."""
    return f"{100 * value:+.{digits}f} %"
