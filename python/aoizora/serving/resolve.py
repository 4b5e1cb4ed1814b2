"""From a request to its plan, at serving time: the cache, else planning in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoizora import _core, cache, errors
from aoizora.errors import CompilerFailed, Error, InvalidRequest
from aoizora.plan_file import Plan
from aoizora.planning import Progress
from aoizora.serving.request import Request

if TYPE_CHECKING:
    import subprocess

OFFLINE = "AOIZORA_OFFLINE"

# What would change the compiler's answer or point libtpu at the TPU that this process holds. The planning process
# starts without them.
FOREIGN_ENVIRONMENT = ("TPU_", "LIBTPU_", "XLA_", "JAX_", "PJRT_", "MEGASCALE_", "CLOUD_TPU_", "PYTHON")
_END_SECONDS = 10.0
_DEFAULT_STEPS: int = Request._field_defaults["steps"]


def cached_plan(request: Request) -> Plan | None:
    """The plan of a request in the cache; also one for the default number of steps, which changes only its seconds a
    video."""
    for steps in dict.fromkeys((request.steps, _DEFAULT_STEPS)):
        found = cache.lookup(_key(request._replace(steps=steps)))
        if found is not None:
            return found
    return None


def plan_for(request: Request, progress: Progress | None = None) -> Plan:
    """The plan of a request: from the cache, else planned now. With AOIZORA_OFFLINE=1 it is never planned."""
    found = cached_plan(request)
    if found is not None:
        return found
    if is_offline():
        raise InvalidRequest(
            f"no plan for this request in {cache.folder()}, and {OFFLINE} forbids to plan now. Plan it beforehand: "
            f"{command(request)}; or give the decorator a file: auto_shard(plan='plan.json')"
        )
    return _plan_in_fresh_process(request, progress)


def is_offline() -> bool:
    return os.environ.get(OFFLINE, "") not in ("", "0")


def command(request: Request) -> str:
    """The command line that plans the same request into the cache."""
    parts = [
        f"aoizora plan --model {request.model} --size {request.height}x{request.width} --frames {request.frames}",
        f"--slice {request.slice}",
    ]
    if request.videos != 1:
        parts.append(f"--videos {request.videos}")
    if not request.cfg:
        parts.append("--no-cfg")
    if request.steps != _DEFAULT_STEPS:
        parts.append(f"--steps {request.steps}")
    if request.dtype != "bf16":
        parts.append(f"--dtype {request.dtype}")
    if request.reserved_hbm_bytes:
        parts.append(f"--reserve-hbm {request.reserved_hbm_bytes / 2**30:g}")
    if request.settings != "{}":
        parts.append(f"(and the settings {request.settings})")
    return " ".join(parts)


def _key(request: Request) -> dict[str, Any]:
    """The cache's key. The planning process has no flags of ours, so neither has the key: to export the flags that a
    plan needs must not make it another plan."""
    key = cache.key_of(
        json.loads(_core.request_json(json.dumps(request.planned()))),
        json.loads(_core.slice_json(request.slice)),
        json.loads(_core.settings_json(request.settings)),
    )
    return {**key, "environment": dict.fromkeys(cache.COMPILER_ENVIRONMENT, "")}


def clean_environment() -> dict[str, str]:
    """This process's environment without what belongs to its own TPU and compiler."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_ENVIRONMENT)}
    return {**kept, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}


def _plan_in_fresh_process(request: Request, progress: Progress | None) -> Plan:
    """Plans in a freshly executed process: this one may hold a TPU, which neither a fork nor a second libtpu in the
    same process would survive."""
    import subprocess  # a hit in the cache has no time for it

    reads, writes = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "aoizora.serving.planning_process", str(writes), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[writes],
            env=clean_environment(),
            start_new_session=True,  # the terminal's Ctrl-C is for us; we end it
        )
    except BaseException:
        os.close(reads)
        raise
    finally:
        os.close(writes)
    answered = False
    try:
        with os.fdopen(reads, "rb") as answers:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as asked:  # its end is told below
                asked.write(json.dumps(request._asdict()).encode())
            for line in answers:
                message = json.loads(line)
                if "progress" in message:
                    if progress is not None and progress(*message["progress"]) is False:
                        raise errors.Interrupted("planning was stopped")
                    continue
                answered = True
                if "error" in message:
                    raise _error(message["error"], message["message"])
                return Plan.loads(message["plan"])
    finally:
        _end(process, answered)
    raise CompilerFailed(f"the planning process ended with status {process.returncode} and no plan")


def _end(process: subprocess.Popen[bytes], answered: bool) -> None:
    """Waits for a process that has answered; asks one whose answer nobody waits for any more to end, then makes it."""
    import signal
    import subprocess

    steps = ((None, _END_SECONDS), (signal.SIGINT, _END_SECONDS), (signal.SIGKILL, None))
    for ask, patience in steps if answered or process.poll() is not None else steps[1:]:
        if ask is not None:
            process.send_signal(ask)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        return


def _error(kind: str, message: str) -> Error:
    known = getattr(errors, kind, CompilerFailed)
    return known(message) if isinstance(known, type) and issubclass(known, Error) else CompilerFailed(message)


def load(source: str | os.PathLike[str] | Plan) -> Plan:
    """The plan that the user named."""
    return source if isinstance(source, Plan) else Plan.load(Path(source))
