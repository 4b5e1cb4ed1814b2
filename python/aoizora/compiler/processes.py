"""What the zygote and its workers ask of the operating system (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TAIL_BYTES = 1500


def held_bytes(pid: int) -> int:
    """Anonymous memory of a process, not what it maps of libtpu's file."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))


def ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was killed by {signal.Signals(-status).name}" + (" (out of memory?)" if -status == signal.SIGKILL else "")


def tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def redirect_output(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def offer_to_oom_killer() -> None:
    # A worker costs one candidate; the planner or the zygote would cost the plan.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")
