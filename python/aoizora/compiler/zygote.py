"""The process that forks the workers and gives them jobs: `python -m aoizora.compiler.zygote SOCKET DIRECTORY`.

It has imported jax and the model, and nothing more: no backend is started, libtpu is not loaded (a fork after that
hangs), and it has one thread. It holds the queue; a worker that dies, hangs or grows costs the job it had. It ends with
its caller, its workers end with it.

A worker that only lowers or compiles whole is kept and reused; one that leaves in the middle of a compile (the passes
rung), or whose job asks for a process of its own, is forked for the job and killed after it.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from aoizora.compiler import processes

_TICK_SECONDS = 1.0
# A kept worker is replaced when it holds this much after a job, or has done this many.
_RECYCLE_BYTES = 1 << 30
_RECYCLE_JOBS = 500
# No job is started while the caller has this much text to take.
_UNTAKEN_BYTES = 512 << 20


@dataclass
class Job:
    serial: int  # the queue's own, names its files
    message: dict[str, Any]
    directory: Path

    @property
    def id(self) -> int:
        return int(self.message["id"])

    @property
    def rung(self) -> str:
        return str(self.message["rung"])

    @property
    def alone(self) -> bool:
        return self.rung == "passes" or bool(self.message.get("own_process"))


@dataclass
class Worker:
    pid: int
    connection: socket.socket
    stderr: Path
    job: Job | None = None
    started: float = 0.0
    jobs_done: int = 0
    received: bytes = b""


@dataclass
class Zygote:
    caller: socket.socket
    directory: Path
    configuration: dict[str, Any]
    build: Callable[..., Any]
    parent: int = field(default_factory=os.getppid)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    pending: list[tuple[float, int, int, Job]] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    untaken: dict[int, int] = field(default_factory=dict)
    serial: int = 0
    workers_forked: int = 0
    received: bytes = b""
    unsent: bytes = b""

    def run(self) -> None:
        """Serves until the caller closes its socket or is gone."""
        self.caller.setblocking(False)
        self.selector.register(self.caller, selectors.EVENT_READ)
        self.tell({"ready": True})
        while os.getppid() == self.parent:
            for key, events in self.selector.select(self.patience()):
                if key.data is not None:
                    self.hear_worker(key.data)
                    continue
                if events & selectors.EVENT_WRITE:
                    self.flush()
                if events & selectors.EVENT_READ and not self.hear_caller():
                    return
            self.watch()
            self.start_jobs()

    def patience(self) -> float:
        now = time.monotonic()
        deadlines = [self.deadline(worker) - now for worker in self.workers if worker.job]
        return max(0.0, min([_TICK_SECONDS, *deadlines]))

    def deadline(self, worker: Worker) -> float:
        assert worker.job
        return worker.started + float(self.configuration["timeouts"][worker.job.rung])

    # The caller

    def tell(self, message: dict[str, Any]) -> None:
        self.unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        # Never blocks: a caller that does not listen must not keep us from watching the workers.
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self.unsent:
                self.unsent = self.unsent[self.caller.send(self.unsent) :]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent else 0)
        self.selector.modify(self.caller, wanted)

    def hear_caller(self) -> bool:
        try:
            data = self.caller.recv(1 << 16)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "submit" in message:
                self.submit(message["submit"])
            elif "cancel" in message:
                self.cancel(message["cancel"])
            else:
                self.untaken.pop(message["taken"], None)
        return bool(data)

    def submit(self, message: dict[str, Any]) -> None:
        self.serial += 1
        job = Job(self.serial, message, self.directory / f"job-{self.serial}")
        heapq.heappush(self.pending, (float(message.get("priority", 0)), job.id, job.serial, job))

    def cancel(self, id: int) -> None:
        kept = [entry for entry in self.pending if entry[3].id != id]
        if len(kept) < len(self.pending):
            heapq.heapify(kept)
            self.pending = kept
            self.tell({"dropped": id})
        for worker in list(self.workers):
            # A propagation is over sooner than another worker has started.
            if worker.job and worker.job.id == id and worker.job.rung != "propagate":
                self.end(worker)
                shutil.rmtree(worker.job.directory, ignore_errors=True)
                self.tell({"dropped": id})

    # The workers

    def start_jobs(self) -> None:
        while (
            self.pending
            and sum(worker.job is not None for worker in self.workers) < int(self.configuration["workers"])
            and sum(self.untaken.values()) < _UNTAKEN_BYTES
        ):
            job = heapq.heappop(self.pending)[3]
            idle = [worker for worker in self.workers if worker.job is None]
            try:
                job.directory.mkdir()
                worker = self.fork() if job.alone or not idle else idle[0]
            except OSError as error:
                self.answer(job, "crashed", f"the compiler's process could not be started: {error}", 0.0)
                continue
            worker.job = job
            worker.started = time.monotonic()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: the selector will say so
                worker.connection.sendall(json.dumps({**job.message, "directory": str(job.directory)}).encode() + b"\n")

    def fork(self) -> Worker:
        self.workers_forked += 1
        stderr = self.directory / f"worker-{self.workers_forked}.stderr"
        ours, theirs = socket.socketpair()
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.become_worker(zygote, ours, theirs, stderr)
        theirs.close()
        worker = Worker(pid, ours, stderr)
        self.workers.append(worker)
        self.selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def become_worker(self, zygote: int, ours: socket.socket, theirs: socket.socket, stderr: Path) -> NoReturn:
        status = 1
        try:
            processes.die_with_parent(zygote)
            os.setsid()
            # Copies of these would keep the caller from seeing that the zygote is gone.
            for connection in (self.caller, ours, *(worker.connection for worker in self.workers)):
                connection.close()
            self.selector.close()
            processes.redirect_output(stderr)
            processes.offer_to_oom_killer()
            from aoizora.compiler import worker

            worker.serve(theirs, self.configuration, self.build)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def hear_worker(self, worker: Worker) -> None:
        if worker not in self.workers:  # ended by an earlier event of the same round
            return
        try:
            data = worker.connection.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.bury(worker)
            return
        worker.received += data
        if worker.received.endswith(b"\n"):
            message, worker.received = json.loads(worker.received), b""
            self.finish(worker, message)

    def finish(self, worker: Worker, message: dict[str, Any]) -> None:
        job, worker.job = worker.job, None
        assert job
        if "fatal" in message:
            self.tell(message)
            return
        worker.jobs_done += 1
        if job.alone or message["held_bytes"] > _RECYCLE_BYTES or worker.jobs_done >= _RECYCLE_JOBS:
            self.end(worker)  # before its files are given away: it may be in the middle of writing more
        self.answer(job, message["outcome"], message["failure"], message["seconds"])

    def answer(self, job: Job, outcome: str, failure: str, seconds: float) -> None:
        shutil.rmtree(job.directory / "dump", ignore_errors=True)
        if outcome == "ok":
            self.untaken[job.serial] = sum(path.stat().st_size for path in job.directory.iterdir())
        else:
            shutil.rmtree(job.directory, ignore_errors=True)
        self.tell({"id": job.id, "serial": job.serial, "outcome": outcome, "failure": failure, "seconds": seconds})

    def watch(self) -> None:
        for worker in list(self.workers):
            if os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self.bury(worker)
            elif worker.job and time.monotonic() >= self.deadline(worker):
                limit = float(self.configuration["timeouts"][worker.job.rung])
                self.lose(worker, "timed_out", f"the {worker.job.rung} rung took more than {limit:g} s")
            elif worker.job and processes.held_bytes(worker.pid) > int(self.configuration["worker_memory_bytes"]):
                limit = int(self.configuration["worker_memory_bytes"]) / 1e9
                self.lose(worker, "crashed", f"the compiler's process held more than {limit:.2f} GB of memory")

    def bury(self, worker: Worker) -> None:
        """Takes leave of a worker that ended by itself, perhaps with an answer given and not yet heard."""
        worker.connection.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            worker.received += worker.connection.recv(1 << 16)
        if worker.job and worker.received.endswith(b"\n"):
            self.finish(worker, json.loads(worker.received))
        if worker in self.workers:
            self.lose(worker, "crashed", "the compiler's process {ending}")

    def lose(self, worker: Worker, outcome: str, why: str) -> None:
        """Ends a worker that will not answer; its job is answered for it."""
        status, last_words = self.end(worker)
        if worker.job:
            failure = why.format(ending=processes.ending(status)) + (
                f"; its last words: {last_words}" if last_words else ""
            )
            self.answer(worker.job, outcome, failure, time.monotonic() - worker.started)

    def end(self, worker: Worker) -> tuple[int, str]:
        """Kills a worker and what it started; returns how it had ended and what it said last."""
        for kill in (os.killpg, os.kill):  # it may not have its own group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(worker.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        self.selector.unregister(worker.connection)
        worker.connection.close()
        self.workers.remove(worker)
        last_words = processes.tail(worker.stderr)
        worker.stderr.unlink(missing_ok=True)
        return status, last_words


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = connection.recv(1)
        if not data:
            sys.exit(0)
        line += data
    return line


def _load(configuration: dict[str, Any]) -> Callable[..., Any]:
    """Imports jax and the model; returns the function that builds a candidate's program."""
    module, function = configuration["builder"].split(":")
    importlib.import_module("aoizora.compiler.worker").preload()
    build: Callable[..., Any] = getattr(importlib.import_module(module), function)
    # What is alive now is shared with every worker; the collector shall not touch (and so copy) it.
    gc.collect()
    gc.freeze()
    return build


def main() -> None:
    """Serves one WorkerQueue, then leaves nothing behind."""
    caller = socket.socket(fileno=int(sys.argv[1]))
    directory = Path(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    try:
        configuration = json.loads(_read_line(caller))
        try:
            configuration["traces"] = str(directory / "traces")
            build = _load(configuration)
        except Exception as error:
            message = {"fatal": f"jax or the model does not load: {type(error).__name__}: {error}"}
            caller.sendall(json.dumps(message).encode() + b"\n")
            raise
        zygote = Zygote(caller, directory, configuration, build)
        try:
            zygote.run()
        finally:
            for worker in list(zygote.workers):
                zygote.end(worker)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
