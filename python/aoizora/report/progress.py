"""Progress of a plan: one live line on a terminal, a line a stage elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from typing import TextIO


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class ProgressLine:
    """Callable for plan(progress=...)."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._last_drawn = 0.0
        self._stage = ""
        self._open = False

    def __call__(self, stage: str, done: int, total: int, elapsed: float, remaining: float, best: str) -> bool:
        if self._quiet:
            return True
        if not self._live:
            self._plain(stage, done, total, elapsed)
            return True
        now = time.monotonic()
        if now - self._last_drawn < 0.1 and done != total and stage == self._stage:
            return True
        self._last_drawn, self._stage, self._open = now, stage, True
        width = 20
        filled = width * done // max(total, 1)
        left = f", {_clock(remaining)} left" if 0 < done < total else ""
        line = f"[{'#' * filled}{'.' * (width - filled)}] {stage} {done}/{total}{left}"
        if best and len(line) + len(best) + 8 <= 79:
            line += f"  best {best}"
        self._stream.write("\r\x1b[K" + line[:79])
        if done == total:
            self._stream.write("\n")
            self._open = False
        self._stream.flush()
        return True

    def _plain(self, stage: str, done: int, total: int, elapsed: float) -> None:
        if stage != self._stage:
            self._stage = stage
            self._last_drawn = time.monotonic()
            print(f"{stage}: {total} to do", file=self._stream, flush=True)
        if done == total:
            print(f"{stage}: {done} done in {elapsed:.1f} s", file=self._stream, flush=True)
        elif time.monotonic() - self._last_drawn > 15:
            self._last_drawn = time.monotonic()
            left = elapsed / max(done, 1) * (total - done)
            print(f"{stage}: {done} of {total}, about {_clock(left)} left", file=self._stream, flush=True)

    def close(self) -> None:
        """Ends a live line that an error cut short."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False
