"""Text for a terminal: what came from a file must neither steer it nor fail to print."""

from __future__ import annotations

import sys

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
_BREAKS = {ord("\n"): " ", ord("\t"): " "}


def people(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.translate(_CONTROLS).encode(encoding, "backslashreplace").decode(encoding)


def one_line(text: str) -> str:
    return text.translate(_CONTROLS | _BREAKS)
