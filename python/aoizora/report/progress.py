"""Progress of a plan: two live lines on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import sys
import threading
from time import monotonic
from typing import NamedTuple, TextIO

from aoizora.report.printable import one_line

_BAR = 20
_REDRAW_SECONDS = 0.1
_PLAIN_SECONDS = 15.0
_TICK_SECONDS = 1.0
_PLAIN_WIDTH = 79


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class _Told(NamedTuple):
    """What was told last, and when."""

    stage: str
    done: int
    total: int
    elapsed: float
    remaining: float
    best: str
    at: float

    def time(self, now: float) -> str:
        """That is left where it is known, else that is gone."""
        since = now - self.at
        if 0 < self.done < self.total and self.remaining > since:
            return f"{_clock(self.remaining - since)} left"
        return f"{_clock(self.elapsed + since)} so far"


class ProgressLine:
    """Callable for plan(progress=...): the stage, what of it is done, the time left for it, the best plan so far.

    One compile may take minutes in which nothing is told: a thread goes on with the time until `close`.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._last_drawn = 0.0
        self._stage = ""
        self._lines_below = 0  # that the live view has left the cursor under its first line
        self._open = False
        self._told: _Told | None = None
        self._lock = threading.Lock()
        self._stop: threading.Event | None = None  # of the thread, where there is one

    def __call__(self, stage: str, done: int, total: int, elapsed: float, remaining: float, best: str) -> bool:
        if self._quiet:
            return True
        with self._lock:
            now = monotonic()
            self._told = _Told(stage, done, total, elapsed, remaining, best, now)
            if self._live:
                if now - self._last_drawn >= _REDRAW_SECONDS or done == total or stage != self._stage:
                    self._draw(self._told, now)
            else:
                self._print(self._told, now)
            if self._stop is None:
                self._stop = threading.Event()
                threading.Thread(target=self._tick, args=(self._stop,), daemon=True).start()
        return True

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(_TICK_SECONDS):
            with self._lock:
                if stop.is_set() or self._told is None or self._told.done == self._told.total:
                    continue
                try:
                    if self._live:
                        self._draw(self._told, monotonic())
                    else:
                        self._print(self._told, monotonic())
                except (OSError, ValueError):  # nobody reads any more; the one who tells is told so
                    return

    def _draw(self, told: _Told, now: float) -> None:
        self._last_drawn, self._stage = now, told.stage
        done, total = told.done, told.total
        filled = _BAR * done // max(total, 1)
        left = f", {told.time(now)}" if done < total and (done > 0 or now - told.at >= _TICK_SECONDS) else ""
        lines = [f"[{'#' * filled}{'.' * (_BAR - filled)}] {told.stage} {done}/{total}{left}"]
        if told.best:
            lines.append(f"best so far: {told.best}")
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

    def _print(self, told: _Told, now: float) -> None:
        if told.stage != self._stage:
            self._stage, self._last_drawn = told.stage, now
            if told.total > 1:
                self._say(f"{told.stage}: {told.total} to do")
        so_far = f"; best so far: {told.best}" if told.best else ""
        if told.done == told.total:
            self._say(f"{told.stage}: {told.done} done in {told.elapsed:.1f} s{so_far}")
        elif now - self._last_drawn > _PLAIN_SECONDS:
            self._last_drawn = now
            self._say(f"{told.stage}: {told.done} of {told.total}, {told.time(now)}{so_far}")

    def _say(self, line: str) -> None:
        line = one_line(line)
        print(line if len(line) <= _PLAIN_WIDTH else line[: _PLAIN_WIDTH - 3] + "...", file=self._stream, flush=True)

    def close(self) -> None:
        """Ends the thread, and a live view that an error cut short. What is told later starts anew."""
        with self._lock:
            if self._stop is not None:
                self._stop.set()
            self._stop = self._told = None
            if self._open:
                self._stream.write("\n")
                self._stream.flush()
                self._lines_below, self._open = 0, False
