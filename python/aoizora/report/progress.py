"""Progress of a plan: two live lines on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from aoizora.report.printable import one_line

_BAR = 20
_REDRAW_SECONDS = 0.1
_PLAIN_SECONDS = 15.0
_PLAIN_WIDTH = 79


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class ProgressLine:
    """Callable for plan(progress=...): the stage, what of it is done, the time left for it, the best plan so far."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._last_drawn = 0.0
        self._stage = ""
        self._lines_below = 0  # that the live view has left the cursor under its first line
        self._open = False

    def __call__(self, stage: str, done: int, total: int, elapsed: float, remaining: float, best: str) -> bool:
        if self._quiet:
            return True
        if self._live:
            self._draw(stage, done, total, remaining, best)
        else:
            self._print(stage, done, total, elapsed, remaining, best)
        return True

    def _draw(self, stage: str, done: int, total: int, remaining: float, best: str) -> None:
        now = time.monotonic()
        if now - self._last_drawn < _REDRAW_SECONDS and done != total and stage == self._stage:
            return
        self._last_drawn, self._stage = now, stage
        filled = _BAR * done // max(total, 1)
        left = f", {_clock(remaining)} left" if 0 < done < total else ""
        lines = [f"[{'#' * filled}{'.' * (_BAR - filled)}] {stage} {done}/{total}{left}"]
        if best:
            lines.append(f"best so far: {best}")
        width = self._width()
        text = "\n".join(f"\x1b[K{one_line(line)[:width]}" for line in lines)
        self._stream.write(self._back() + text)
        self._lines_below = len(lines) - 1
        self._open = True
        if done == total:  # the bar stays, the best goes under the next one
            self._stream.write(f"{self._back()}{lines[0][:width]}\n\x1b[J")
            self._lines_below, self._open = 0, False
        self._stream.flush()

    def _back(self) -> str:
        return "\r" + (f"\x1b[{self._lines_below}A" if self._lines_below else "")

    def _width(self) -> int:
        try:
            return max(20, os.get_terminal_size(self._stream.fileno()).columns - 1)
        except (OSError, ValueError):
            return 79

    def _print(self, stage: str, done: int, total: int, elapsed: float, remaining: float, best: str) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._last_drawn = stage, now
            if total > 1:
                self._say(f"{stage}: {total} to do")
        so_far = f"; best so far: {best}" if best else ""
        if done == total:
            self._say(f"{stage}: {done} done in {elapsed:.1f} s{so_far}")
        elif now - self._last_drawn > _PLAIN_SECONDS:
            self._last_drawn = now
            self._say(f"{stage}: {done} of {total}, about {_clock(remaining)} left{so_far}")

    def _say(self, line: str) -> None:
        line = one_line(line)
        print(line if len(line) <= _PLAIN_WIDTH else line[: _PLAIN_WIDTH - 3] + "...", file=self._stream, flush=True)

    def close(self) -> None:
        """Ends a live view that an error cut short."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._lines_below, self._open = 0, False
