"""Markdown tables, and what the paper reports, to stand beside our numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# AoiZora paper, all measured on TPU v5e. Section 3, Observation 1 and Figure 2:
SPREAD_PERCENT = 16.6
# Section 3 and Figure 3, GB/s.
PERMUTE_ALONE, PERMUTE_SHARED = 23.0, 15.2
# Section 4.4 and Figure 6: one all-reduce on the tensor axis under two placements.
ALL_REDUCE_MEGABYTES, ALL_REDUCE_COMPACT_MS, ALL_REDUCE_STRIDED_MS = 64.7, 9.66, 19.32
# Table 2: speed-up over the existing deployment and over the Alpa-style search; None where that one does not fit.
SPEEDUPS: dict[tuple[str, int, int], tuple[float, float | None]] = {
    ("v5e:2x2", 480, 21): (1.03, 1.00), ("v5e:2x4", 480, 21): (1.12, 1.06), ("v5e:4x4", 480, 21): (1.42, 1.37),
    ("v5e:2x2", 480, 41): (1.00, 1.05), ("v5e:2x4", 480, 41): (1.12, 1.15), ("v5e:4x4", 480, 41): (1.18, 1.16),
    ("v5e:2x2", 480, 81): (1.00, 1.07), ("v5e:2x4", 480, 81): (1.15, 1.18), ("v5e:4x4", 480, 81): (1.13, 1.11),
    ("v5e:2x2", 720, 21): (1.00, 1.05), ("v5e:2x4", 720, 21): (1.12, 1.17), ("v5e:4x4", 720, 21): (1.05, 1.04),
    ("v5e:2x2", 720, 41): (1.01, 1.00), ("v5e:2x4", 720, 41): (1.09, 1.17), ("v5e:4x4", 720, 41): (1.17, 1.16),
    ("v5e:2x2", 720, 81): (1.00, None), ("v5e:2x4", 720, 81): (1.09, 1.06), ("v5e:4x4", 720, 81): (1.07, 1.07),
}  # fmt: skip
# Table 3: Spearman before and after compile, the best kept by the pruning.
FIDELITY = {
    ("v5e:2x2", 480): (0.840, 0.928, "3/3"), ("v5e:2x2", 720): (0.794, 0.962, "3/3"),
    ("v5e:2x4", 480): (0.724, 0.985, "3/3"), ("v5e:2x4", 720): (0.655, 0.936, "3/3"),
    ("v5e:4x4", 480): (0.667, 0.859, "3/3"), ("v5e:4x4", 720): (0.694, 0.817, "3/3"),
}  # fmt: skip
# Table 4, v5e-16: milliseconds a block of stage 1 alone (from, to) and of the full planner; the one-block proxy's
# Spearman.
ABLATION = {
    (480, 21): (21.412, 26.823, 14.750, 0.000), (480, 41): (35.794, 38.269, 29.403, 0.371),
    (480, 81): (65.598, 68.474, 58.373, 0.048), (720, 21): (45.435, 46.012, 34.754, 0.143),
    (720, 41): (85.146, 88.833, 77.788, 0.000), (720, 81): (207.861, 224.203, 202.389, 0.000),
}  # fmt: skip
# Its column "Full" alone.
BLOCK_MS = {size: full for size, (_, _, full, _) in ABLATION.items()}
# Section 6.6 and Figure 9, seconds on the authors' host: stage 1 and in total, from and to.
PLANNING_SECONDS = {
    "v5e:2x2": ((19, 23), (47, 108)),
    "v5e:2x4": ((55, 77), (112, 145)),
    "v5e:4x4": ((75, 112), (250, 376)),
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def rows_of(text: str) -> list[list[dict[str, str]]]:
    """The tables of a Markdown text, each a list of rows, a row its cells by column: what `table` wrote, read back."""
    found: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("| "):
            if not inside:
                found.append([])
            cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
            found[-1].append([cell.strip().replace("\\|", "|") for cell in cells])
        inside = line.startswith("| ")
    return [[dict(zip(header, row, strict=True)) for row in rows] for header, _, *rows in found]


def number(value: float | None, digits: int = 3, missing: str = "–") -> str:
    """With so many decimals."""
    return missing if value is None else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 1, missing: str = "–") -> str:
    """Of a share or a gain."""
    return missing if value is None else f"{100 * value:.{digits}f} %"


def beside(ours: str, paper: str) -> str:
    """Our number and the paper's in one cell."""
    return f"{ours} (paper {paper})"


def span(values: Sequence[float], digits: int = 1) -> str:
    """Least to most."""
    low, high = (f"{round(value, digits) + 0.0:.{digits}f}" for value in (min(values), max(values)))  # no "-0.0"
    return low if low == high else f"{low}–{high}"
