"""Cycles of fusions that code generation has told once, for every later plan. Imports no jax.

One SQLite file beside the plan cache, keyed by fingerprint (aoizora/planner/cycles.h), by the compiler's
versions and by the kind of device it compiles for.
What is remembered spares compiles, it never changes a plan: a memory that cannot be used is as good as an empty one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE_NAME = "cycles.sqlite"
_SCHEMA = """
create table if not exists cycles (
  versions text not null, fingerprint text not null, cycles integer not null, checksum integer not null,
  primary key (versions, fingerprint)
) without rowid;
"""
_AT_ONCE = 500  # parameters of one statement


class CycleMemory:
    """Safe with many processes, and with a kill at any moment: SQLite's write-ahead log, one transaction a call."""

    def __init__(self, path: Path, versions: Sequence[str], device_kind: str) -> None:
        self._versions = ", ".join([*versions, device_kind])
        self._database = _open(path)

    def lookup(self, fingerprints: Sequence[str]) -> dict[str, int]:
        """Of these, what is remembered for this compiler and kind of device."""
        found: dict[str, int] = {}
        if self._database is None:
            return found
        with contextlib.suppress(sqlite3.Error):
            for start in range(0, len(fingerprints), _AT_ONCE):
                part = fingerprints[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                rows = self._database.execute(
                    f"select fingerprint, cycles, checksum from cycles where versions = ? and fingerprint in ({marks})",
                    (self._versions, *part),
                )
                found.update(
                    (name, cycles) for name, cycles, checksum in rows if checksum == self._checksum(name, cycles)
                )
        return found

    def remember(self, cycles: Mapping[str, int]) -> None:
        """Keeps what is not there yet."""
        if self._database is None:
            return
        rows = [(self._versions, name, number, self._checksum(name, number)) for name, number in sorted(cycles.items())]
        with contextlib.suppress(sqlite3.Error), self._database:
            self._database.executemany("insert or ignore into cycles values (?, ?, ?, ?)", rows)

    def _checksum(self, fingerprint: object, cycles: object) -> int:
        """A damaged page may hold any number."""
        return zlib.crc32(f"{self._versions}\0{fingerprint}\0{cycles!r}".encode("utf-8", "replace"))

    def close(self) -> None:
        """Closes the file."""
        if self._database is not None:
            self._database.close()
            self._database = None


def _open(path: Path) -> sqlite3.Connection | None:
    """The database; a damaged file is set aside first, None where there can be none."""
    for _ in range(2):
        database = None
        try:
            database = sqlite3.connect(path, timeout=10.0)
            database.execute("pragma journal_mode=wal")
            database.execute("pragma synchronous=normal")
            database.executescript(_SCHEMA)
            database.execute("select checksum from cycles where versions = '' and fingerprint = ''").fetchall()
            return database
        except sqlite3.OperationalError:  # locked, a full disk, no permission
            if database is not None:
                database.close()
            return None
        except sqlite3.DatabaseError:
            if database is not None:
                database.close()
            _set_aside(path)
    return None


def _set_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.damaged-{os.getpid()}-{time.time_ns()}")
    with contextlib.suppress(OSError):
        os.replace(path, aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(OSError):
            os.unlink(f"{path}{suffix}")
