"""Plots as SVG, the same bytes for the same numbers: no date, ids by a fixed salt, text as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

OURS, JUDGE, PAPER, OTHER = "#2a6f97", "#7fb7be", "#d1495b", "#9a9a9a"
SECOND, SECOND_JUDGE = "#7b5e91", "#bfa8cf"


def _figure(width: float = 7.0, height: float = 3.2, panels: int = 1) -> tuple[Any, Any]:
    import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    mpl.rcParams.update(
        {"svg.hashsalt": "aoizora", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
         "axes.spines.right": False, "font.family": "sans-serif", "savefig.facecolor": "white"}
    )  # fmt: skip
    return plt.subplots(1, panels, figsize=(width, height), squeeze=panels == 1, layout="constrained")


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    # matplotlib ends lines of paths with blanks
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n", encoding="utf-8")


def _legend(axes: Any) -> None:
    """Above the plot, where it hides nothing."""
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)


def _plain(axis: Any, values: Sequence[float]) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, as plain numbers."""
    import math

    low, high = min(values, default=1.0), max(values, default=1.0)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5) if low / 2 <= m * 10.0**p <= 2 * high]
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def bars(
    path: Path,
    names: Sequence[str],
    series: Sequence[tuple[str, str, Sequence[float | None]]],
    unit: str,
    *,
    lines: Sequence[tuple[str, float]] = (),
    logarithmic: bool = False,
    labels: Sequence[str] = (),
) -> None:
    """Groups of bars, one series (name, colour, values) a colour; `lines` are levels of the paper, `labels` stand above
    the groups."""
    figure, axes = _figure(width=max(5.0, min(12.0, 0.55 * len(names) * max(1, len(series) / 2) + 2)))
    width = 0.8 / len(series)
    for k, (name, colour, values) in enumerate(series):
        at = [i + (k - (len(series) - 1) / 2) * width for i, value in enumerate(values) if value is not None]
        axes.bar(at, [value for value in values if value is not None], width, label=name, color=colour)
    for k, (name, level) in enumerate(lines):
        axes.axhline(level, color=PAPER, linestyle=("--", ":")[k % 2], linewidth=1, label=name)
    if logarithmic:
        axes.set_yscale("log")
        _plain(axes.yaxis, [v for _, _, values in series for v in values if v is not None])
    for i, text in enumerate(labels):
        top = max((values[i] or 0.0 for _, _, values in series), default=0.0)
        axes.annotate(text, (i, top), ha="center", va="bottom", fontsize=7)
    turned = max(map(len, names), default=0) * len(names) > 90
    axes.set_xticks(range(len(names)), names, rotation=35 if turned else 0, ha="right" if turned else "center")
    axes.set_ylabel(unit)
    if len(series) + len(lines) > 1:
        _legend(axes)
    _save(figure, path)


def stacked(path: Path, names: Sequence[str], parts: Sequence[tuple[str, str, Sequence[float]]], unit: str) -> None:
    """Bars made of parts, bottom first."""
    figure, axes = _figure(width=max(5.0, min(12.0, 0.6 * len(names) + 2)))
    bottom = [0.0] * len(names)
    for name, colour, values in parts:
        axes.bar(range(len(names)), values, 0.7, bottom=bottom, label=name, color=colour)
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    turned = len(names) > 6
    axes.set_xticks(range(len(names)), names, rotation=35 if turned else 0, ha="right" if turned else "center")
    axes.set_ylabel(unit)
    _legend(axes)
    _save(figure, path)


def pruning(path: Path, panels: Sequence[tuple[str, Sequence[tuple[float, float, bool]]]], kept: float) -> None:
    """Figure 8: a panel a slice; points (percentile by Q1, time over the best, kept); the region that is kept."""
    figure, grid = _figure(width=3.2 * len(panels) + 0.6, height=3.2, panels=max(len(panels), 2))
    for axes, (title, points) in zip(grid[0], panels, strict=False):
        axes.axvspan(0, 100 * kept, color="#b7e4c7", alpha=0.6, linewidth=0)
        for keep, colour in ((False, OTHER), (True, OURS)):
            chosen = [(100 * x, y) for x, y, k in points if k == keep]
            axes.scatter([x for x, _ in chosen], [y for _, y in chosen], s=6, color=colour, linewidths=0)
        axes.set_title(title)
        axes.set_xlabel("percentile by Q1")
        axes.set_yscale("log")
        _plain(axes.yaxis, [y for _, y, _ in points])
    grid[0][0].set_ylabel("simulated step over the best")
    for axes in grid[0][len(panels) :]:
        axes.axis("off")
    _save(figure, path)


def scatter(
    path: Path, points: Sequence[tuple[float, float, str]], x_name: str, y_name: str, *, diagonal: bool = True
) -> None:
    """Named points; the diagonal is where both agree."""
    figure, axes = _figure(width=4.2, height=3.6)
    axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], s=18, color=OURS)
    for x, y, name in points:
        axes.annotate(name, (x, y), fontsize=7, xytext=(4, -3), textcoords="offset points")
    if diagonal and points:
        ends = [min(min(x, y) for x, y, _ in points), max(max(x, y) for x, y, _ in points)]
        axes.plot(ends, ends, color=PAPER, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain(axes.xaxis, [x for x, _, _ in points])
    _plain(axes.yaxis, [y for _, y, _ in points])
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    _save(figure, path)
