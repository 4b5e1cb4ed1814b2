"""Text of a program from a file's bytes, gzip-compressed or plain."""

from __future__ import annotations

import re
import sys
import zlib

from aoizora.errors import InvalidRequest

GZIP = b"\x1f\x8b"
# Texts of whole models have some hundred MB; gzip may hide a thousand times as much as the file shows.
MOST_BYTES = 2**30
_STARTS = {"HLO text": rb"HloModule\b", "MLIR text": rb"(module\b|\"builtin\.module\"|#loc|sdy\.mesh)"}


def read(path: str) -> str:
    """Text of a file, or of standard input for "-". Raises InvalidRequest."""
    try:
        if path == "-":
            return decode(sys.stdin.buffer.read(), "standard input")
        with open(path, "rb") as file:
            return decode(file.read(), path)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from None


def looks_like(data: bytes) -> str:
    """What kind of program's file it is by its start; empty for any other file."""
    if data.startswith(GZIP):
        return "gzip"
    return next((kind for kind, start in _STARTS.items() if re.match(rb"\s*" + start, data)), "")


def refuse_plan(text: str, path: str = "") -> None:
    """Raises InvalidRequest where a text that is to be a program is a plan; `path` is its file's, where it has one."""
    if re.match(r'\s*\{\s*"format":\s*"aoizora plan"', text):
        raise InvalidRequest(
            f'{path or "this"} is a plan, no program: "aoizora explain {path or "plan.json"}" shows it'
        )


def decode(data: bytes, name: str) -> str:
    """`name` says in errors where the bytes are from. Raises InvalidRequest."""
    if data.startswith(GZIP):
        data = _decompress(data, name)
    return data.decode("utf-8", "replace")


def _decompress(data: bytes, name: str) -> bytes:
    parts = []
    left = MOST_BYTES
    while data:  # a gzip file may have several members; zeros behind them are padding
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(data, left + 1)
        except zlib.error as error:
            raise InvalidRequest(f"{name} is damaged gzip ({error}): copy it again, or unpack it first") from None
        left -= len(part)
        if left < 0:
            raise InvalidRequest(f"{name} unpacks to more than the {MOST_BYTES} bytes that are read")
        if not member.eof:
            raise InvalidRequest(f"{name} is gzip that ends early: copy it again")
        parts.append(part)
        data = member.unused_data.lstrip(b"\0")
    return b"".join(parts)
