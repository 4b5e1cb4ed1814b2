"""The planner's side of the compiler queue: submit jobs, take the next finished one, cancel. Imports no jax.

The scheduling is done by the zygote process (zygote.py), so the workers stay busy while the planner computes between
two calls of `next`. This side holds one socket to it; when that closes, for whatever reason, zygote and workers end.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from aoizora.errors import CompilerFailed

RUNGS = ("propagate", "passes", "code")
DEFAULT_BUILDER = "aoizora.models:build_step"

# What would change the compiler's answer or point libtpu at a machine; the children start without the caller's.
_FOREIGN_ENVIRONMENT = ("TPU_", "LIBTPU_", "XLA_", "JAX_", "PJRT_", "MEGASCALE_", "CLOUD_TPU_", "PYTHON")
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server: there is no TPU
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else the second process fails on libtpu's lock file
    "TPU_LOG_DIR": "disabled",  # else each process leaves a file in /tmp/tpu_logs
    # libtpu counts by whom it is called, and reads all symbols of its file to name the caller, a quarter of a second a
    # process; it leaves that out where this is set. The texts are the same.
    "UNITTEST_ON_FORGE": "1",
    # The compiler frees and takes memory in large pieces; giving them back each time costs a tenth of a second of page
    # faults a compile.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(32 << 20),
    "PYTHONHASHSEED": "0",  # no set order may reach a program's text
    "OPENBLAS_NUM_THREADS": "1",  # the zygote must have one thread only, it forks
    "OMP_NUM_THREADS": "1",
}
_STARTUP_SECONDS = 300.0
_CLOSE_SECONDS = 5.0


class WorkerQueue:
    """Answers jobs of one request on one slice with the real compiler, in `workers` processes at once.

    `coordinates[d]` is the coordinate and core of device id d; `slice_name` is libtpu's name of the topology.
    `builder` is "module:function", called as function(request, candidate, mesh, layers, attention) with attention
    "opaque" for the propagate rung, "tpu" for the others; it returns (function, arguments). The mesh of the candidate
    it gets is a list of {"name", "size"}, major first. Attributes of the function say more: `stand_in` and `given`
    where candidates share a trace (annotate.py), `on_devices` where it needs the slice's devices at every rung.
    """

    def __init__(
        self,
        request: dict[str, Any],
        slice_name: str,
        coordinates: Sequence[tuple[Sequence[int], int]],
        workers: int | None = None,
        *,
        propagate_timeout_seconds: float = 120.0,
        passes_timeout_seconds: float = 240.0,
        code_timeout_seconds: float = 900.0,
        worker_memory_bytes: int = 6 << 30,
        builder: str = DEFAULT_BUILDER,
    ) -> None:
        _require_compiler()
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}; it must be at least 1")
        if ":" not in builder:
            raise ValueError(f"builder is {builder!r}; it must read 'module:function'")
        self._outstanding: set[int] = set()
        self._received = b""
        self._ready = False
        self._fatal = ""
        self._started = time.monotonic()
        self._directory = Path(tempfile.mkdtemp(prefix="aoizora-"))
        ours, theirs = socket.socketpair()
        self._socket = ours
        try:
            with open(self._stderr, "wb") as stderr, theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "aoizora.compiler.zygote", str(theirs.fileno()), str(self._directory)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    env=_environment(),
                    start_new_session=True,  # the terminal's Ctrl-C is for the planner, which then closes the queue
                )
        except BaseException:
            ours.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._process, self._socket, self._directory)
        self._send(
            {
                "request": request,
                "slice": slice_name,
                "coordinates": [[list(coordinate), core] for coordinate, core in coordinates],
                "workers": workers or len(os.sched_getaffinity(0)),
                "timeouts": {
                    "propagate": propagate_timeout_seconds,
                    "passes": passes_timeout_seconds,
                    "code": code_timeout_seconds,
                },
                "worker_memory_bytes": worker_memory_bytes,
                "builder": builder,
            }
        )

    def submit(self, job_json: str) -> None:
        """Takes a job, fields as in compiler.h; lower priority first, then lower id. ValueError for a bad one."""
        job = json.loads(job_json)
        if (
            not isinstance(job, dict)
            or not isinstance(job.get("id"), int)
            or not isinstance(job.get("candidate"), dict)
        ):
            raise ValueError("a job is an object with an integer id and a candidate")
        if job.get("rung") not in RUNGS:
            raise ValueError(f"job {job['id']} asks for rung {job.get('rung')!r}; there are {', '.join(RUNGS)}")
        if job["id"] in self._outstanding:
            raise ValueError(f"job {job['id']} is already in the queue")
        self._send({"submit": job})
        self._outstanding.add(job["id"])

    def next(self) -> dict[str, Any]:
        """Blocks until a job finishes. Raises CompilerFailed where the compiler itself cannot go on."""
        while self._outstanding:
            if self._fatal:
                raise CompilerFailed(self._fatal)
            message = self._receive()
            if "ready" in message:
                self._ready = True
            elif "fatal" in message:
                self._fatal = message["fatal"]
            elif "dropped" in message:
                self._outstanding.discard(message["dropped"])
            else:
                self._outstanding.discard(message["id"])
                return self._take(message)
        raise ValueError("no job is in the queue: submit one before asking for the next answer")

    def cancel(self, id: int) -> None:
        """Drops a job not yet started and stops a running compile of it. An answer on its way may still come."""
        if id in self._outstanding:
            self._send({"cancel": id})

    def versions(self) -> list[str]:
        """Versions of all that decides what the compiler answers."""
        return self.compiler_versions()

    @staticmethod
    def compiler_versions() -> list[str]:
        """Versions of all that decides what the compiler answers."""
        return [f"{name}={importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "libtpu")]

    def close(self) -> None:
        """Ends all processes and removes their files. What is in the queue is lost."""
        self._outstanding.clear()
        self._finalizer()

    def __enter__(self) -> WorkerQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _stderr(self) -> Path:
        return self._directory / "zygote.stderr"

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._gone() from error

    def _receive(self) -> dict[str, Any]:
        # Bytes received stay in the object, so a KeyboardInterrupt between two of them loses nothing.
        while b"\n" not in self._received:
            if not self._ready and time.monotonic() - self._started > _STARTUP_SECONDS:
                raise CompilerFailed(f"the compiler's processes did not start within {_STARTUP_SECONDS:g} s")
            try:
                if not select.select([self._socket], [], [], 1.0)[0]:
                    continue
                data = self._socket.recv(1 << 16)
            except (OSError, ValueError) as error:
                raise self._gone() from error
            if not data:
                raise self._gone()
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _take(self, message: dict[str, Any]) -> dict[str, Any]:
        serial = message.pop("serial")
        directory = self._directory / f"job-{serial}"
        answer = {"text": "", "memory_report": "", "failure": "", **message}
        if answer["outcome"] == "ok":
            answer["text"] = (directory / "text").read_text(encoding="utf-8", errors="replace")
            report = directory / "memory_report"
            answer["memory_report"] = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(CompilerFailed):
            self._send({"taken": serial})
        return answer

    def _gone(self) -> CompilerFailed:
        if not self._finalizer.alive:
            return CompilerFailed("the compiler queue is closed")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        tail = ""
        with contextlib.suppress(OSError):
            tail = self._stderr.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        how = f"exit status {self._process.returncode}" if self._process.returncode is not None else "still running"
        return CompilerFailed(
            f"the process that starts the compiler's workers is gone ({how})" + (f": {tail}" if tail else "")
        )


def _require_compiler() -> None:
    for name, install in (("jax", "pip install jax"), ("libtpu", "pip install libtpu")):
        if importlib.util.find_spec(name) is None:
            raise CompilerFailed(
                f"{name} is not installed in {sys.prefix}: the XLA:TPU compiler cannot be asked. Install it: {install}"
            )


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_ENVIRONMENT)}
    # The children find modules where the caller does, however its path came about.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**kept, **_ENVIRONMENT, "PYTHONPATH": path}


def _end(owner: int, process: subprocess.Popen[bytes], connection: socket.socket, directory: Path) -> None:
    connection.close()
    if os.getpid() != owner:  # a fork of the caller: the processes are not its own
        return
    try:
        process.wait(_CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # its workers die with it
        process.wait()
    shutil.rmtree(directory, ignore_errors=True)
