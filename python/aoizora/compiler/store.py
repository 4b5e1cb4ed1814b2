"""A compiler queue that remembers: answers are kept in a file, so that a long run goes on where it stopped.

Same calls as WorkerQueue (queue.py). An answer is kept under all that decides it: request, slice, candidate, rung,
layers, placement, versions and the name of the model's program. Crashes and time-outs are not kept. Imports no jax.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from aoizora.compiler.queue import DEFAULT_BUILDER, WorkerQueue

# The program that a rung is given, by names that mean nothing: a new one wherever it changes, so that no answer of
# before is taken for one of after. A test fails where the model's program changed and its name did not.
_FIRST = "890c0b94e3ba61b9aff3c3883075911f1847594af21029259727738751f09673"
_PROGRAMS = {"propagate": _FIRST + "+sites", "passes": _FIRST, "code": _FIRST}

_KEPT_OUTCOMES = ("ok", "out_of_memory", "refused")
_SCHEMA = """
create table if not exists answers (
  key text primary key, outcome text not null, seconds real not null, failure text not null,
  text blob not null, memory_report blob not null
) without rowid;
"""


class AnswerStore:
    """Answers of the compiler in one SQLite file; many processes may use it at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=60.0, isolation_level=None)
        self._database.execute("pragma journal_mode=wal")
        self._database.execute("pragma synchronous=normal")
        self._database.executescript(_SCHEMA)

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer kept under a key: outcome, seconds, failure, text, memory_report."""
        row = self._database.execute(
            "select outcome, seconds, failure, text, memory_report from answers where key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        outcome, seconds, failure, text, report = row
        return {
            "outcome": outcome,
            "seconds": seconds,
            "failure": failure,
            "text": zlib.decompress(text).decode(),
            "memory_report": zlib.decompress(report).decode(),
        }

    def has(self, key: str) -> bool:
        """Whether an answer is kept under a key."""
        return self._database.execute("select 1 from answers where key = ?", (key,)).fetchone() is not None

    def put(self, key: str, answer: dict[str, Any]) -> None:
        """Keeps an answer; one that is there already stays."""
        self._database.execute(
            "insert or ignore into answers values (?, ?, ?, ?, ?, ?)",
            (
                key,
                answer["outcome"],
                float(answer.get("seconds", 0.0)),
                answer["failure"],
                zlib.compress(answer["text"].encode(), 6),
                zlib.compress(answer["memory_report"].encode(), 6),
            ),
        )

    def close(self) -> None:
        """Closes the file."""
        self._database.close()


class StoredQueue:
    """WorkerQueue over an AnswerStore; no process is started before an answer is missing."""

    def __init__(
        self,
        store: AnswerStore,
        request: dict[str, Any],
        slice_name: str,
        coordinates: Sequence[tuple[Sequence[int], int]],
        workers: int | None = None,
        *,
        builder: str = DEFAULT_BUILDER,
        **limits: Any,
    ) -> None:
        self._store = store
        self._common = {"request": _decisive(request), "slice": slice_name, "builder": builder}
        self._arguments = (request, slice_name, coordinates, workers)
        self._options = {"builder": builder, **limits}
        self._queue: WorkerQueue | None = None
        self._known: deque[dict[str, Any]] = deque()
        self._keys: dict[int, str] = {}

    def key(self, job: dict[str, Any]) -> str:
        """The name under which a job's answer is kept."""
        decisive = {name: job.get(name) for name in ("candidate", "rung", "placement", "reshard")}
        versions = WorkerQueue.compiler_versions()
        parts = [self._common, decisive, int(job.get("layers", 3)), versions, _PROGRAMS.get(job["rung"])]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def submit(self, job_json: str) -> None:
        """As WorkerQueue.submit."""
        job = json.loads(job_json)
        key = self.key(job)
        answer = self._store.get(key)
        if answer is not None:
            self._known.append({"id": job["id"], **answer})
            return
        if self._queue is None:
            self._queue = WorkerQueue(*self._arguments, **self._options)
        self._queue.submit(job_json)
        self._keys[job["id"]] = key

    def next(self) -> dict[str, Any]:
        """As WorkerQueue.next; answers that were kept come first."""
        if self._known:
            return self._known.popleft()
        if self._queue is None:
            raise ValueError("no job is in the queue: submit one before asking for the next answer")
        answer = self._queue.next()
        if answer["outcome"] in _KEPT_OUTCOMES:
            self._store.put(self._keys.pop(answer["id"]), answer)
        return answer

    def cancel(self, id: int) -> None:
        """As WorkerQueue.cancel."""
        if self._queue is not None:
            self._queue.cancel(id)

    def versions(self) -> list[str]:
        """As WorkerQueue.versions."""
        return WorkerQueue.compiler_versions()

    def close(self) -> None:
        """Ends the processes; the store stays open, it is the caller's."""
        if self._queue is not None:
            self._queue.close()

    def __enter__(self) -> StoredQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):
            self.close()


@contextlib.contextmanager
def open_queue(
    store: str | Path | None,
    request: dict[str, Any],
    slice_name: str,
    coordinates: Sequence[tuple[Sequence[int], int]],
    workers: int | None = None,
    builder: str = DEFAULT_BUILDER,
) -> Iterator[WorkerQueue | StoredQueue]:
    """The compiler's queue, over the store of that path where one is given."""
    if store is None:
        with WorkerQueue(request, slice_name, coordinates, workers, builder=builder) as queue:
            yield queue
        return
    answers = AnswerStore(Path(store))
    try:
        with StoredQueue(answers, request, slice_name, coordinates, workers, builder=builder) as stored:
            yield stored
    finally:
        answers.close()


def _decisive(request: dict[str, Any]) -> dict[str, Any]:
    # The number of steps, the HBM left free and where a program's text lies change no program.
    return {name: value for name, value in request.items() if name not in ("steps", "reserved_hbm_bytes", "folder")}
