"""Runs traffic over a mesh of namespaces: raw sockets, or a JAX process a namespace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from judges.netns.mesh import NamespaceMesh

# What else runs on the machine must not be taken for a full link.
URGENT = ("nice", "-n", "-15")
COORDINATOR_PORT = 20900
TIMEOUT_SECONDS = 240


def socket_seconds(
    program: Path, mesh: NamespaceMesh, slice_json: dict[str, Any], cases: Sequence[Sequence[dict[str, Any]]]
) -> list[float]:
    """Seconds of each case, a list of collectives that start together (netns/socket_mesh.cpp has the format)."""
    wanted = {
        "namespaces": mesh.names,
        "addresses": mesh.addresses,
        "slice": slice_json,
        "cases": cases,
    }
    done = subprocess.run(
        [*URGENT, program], input=json.dumps(wanted), capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[:500])
    seconds: list[float] = json.loads(done.stdout)["seconds"]
    return seconds


def _start(
    mesh: NamespaceMesh, chip: int, command: Sequence[str], log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    # gloo binds to the address that the host's name stands for.
    named = ["sh", "-c", 'hostname "$0" && exec "$@"', mesh.addresses[chip], *URGENT, *command]
    with log.open("wb") as errors:
        return subprocess.Popen(
            ["ip", "netns", "exec", mesh.names[chip], "unshare", "--uts", *named],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            start_new_session=True,
        )


def run_everywhere(
    mesh: NamespaceMesh,
    module: str,
    arguments: Sequence[Sequence[str]],
    chips: Sequence[int],
    environment: dict[str, str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[str]:
    """Runs a Python module as one JAX process in each namespace, and returns what each printed: process k, with
    arguments[k], at chips[k]."""
    count = len(chips)
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"log{k}" for k in range(count)]
        running: list[subprocess.Popen[bytes]] = []
        try:
            for k, chip in enumerate(chips):
                command = [sys.executable, "-m", module, *arguments[k], "--process", str(k)]
                command += ["--coordinator", f"{mesh.addresses[chips[0]]}:{COORDINATOR_PORT}"]
                command += ["--processes", str(count)]
                running.append(_start(mesh, chip, command, logs[k], environment or {}))
            deadline = time.monotonic() + timeout_seconds
            for k, process in enumerate(running):
                if process.wait(max(1.0, deadline - time.monotonic())) != 0:
                    raise RuntimeError(f"JAX process {k}: {logs[k].read_text(errors='replace').strip()[-500:]}")
        finally:
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return [log.read_text(errors="replace") for log in logs]


def jax_seconds(mesh: NamespaceMesh, jobs: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of each job (netns/jax_worker.py has the format), the middle of its three quickest runs but the first.

    A run takes as long as its slowest process.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = folder / "jobs.json"
        wanted.write_text(json.dumps({"jobs": list(jobs)}))
        count = len(mesh.names)
        outs = [folder / f"out{chip}.json" for chip in range(count)]
        arguments = [["--jobs", str(wanted), "--out", str(out)] for out in outs]
        run_everywhere(mesh, "judges.netns.jax_worker", arguments, range(count))
        seconds = [json.loads(out.read_text()) for out in outs]
    return [
        sorted(max(run) for run in list(zip(*processes, strict=True))[1:])[1]
        for processes in zip(*seconds, strict=True)
    ]
