"""What a forked worker does with a job: build, lower, and ask the compiler as far as the rung goes."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy
from jax.experimental import topologies

from aoizora.compiler import annotate, dump, private, processes

_POLL_SECONDS = 0.005
_MESH_AXES = ("data", "fsdp", "context", "tensor")
_FAILURE_LENGTH = 4000
# jax remembers about 0.1 MB a program; tracing after it forgot all costs 0.06 s more.
_FORGET_TRACES = 50
_COLLECT_TRACES = 10


class CompilerUnusableError(Exception):
    """No job can be answered."""


def preload() -> None:
    """Imports what every worker needs; runs in the zygote, so it must start no backend and no thread."""
    private.quiet_locations()
    with contextlib.suppress(ImportError):
        importlib.import_module("jax.experimental.pallas.ops.tpu.splash_attention")
        private.preload()


def serve(connection: socket.socket, configuration: dict[str, Any], build: Callable[..., Any]) -> None:
    """Answers jobs, one a line, until the zygote closes the connection."""
    gc.disable()
    slice_ = Slice(configuration["slice"], configuration["coordinates"])
    traces = annotate.Traces(Path(configuration["traces"]))
    made = 0
    for line in connection.makefile("rb"):
        os.ftruncate(2, 0)
        job = json.loads(line)
        reply = Reply(connection)
        try:
            _answer(job, configuration["request"], slice_, build, traces, reply)
        except CompilerUnusableError as error:
            reply.send({"fatal": str(error)})
        except Exception as error:
            reply.fail(error)
        # Between two jobs nobody waits for us. Only a trace leaves what has to be collected.
        if traces.made > made:
            made = traces.made
            if made % _FORGET_TRACES == 0:
                private.forget_programs()
            if made % _COLLECT_TRACES == 0:
                gc.collect()


class Reply:
    """The one answer to a job. The passes rung has two threads that may give it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._sent = False

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            if not self._sent:
                self._sent = True
                self._connection.sendall(json.dumps(message).encode() + b"\n")

    def done(self, outcome: str, failure: str = "") -> None:
        seconds = time.monotonic() - self._started
        self.send(
            {
                "outcome": outcome,
                "failure": failure,
                "seconds": seconds,
                "held_bytes": processes.held_bytes(os.getpid()),
            }
        )

    def fail(self, error: Exception) -> None:
        text = str(error)
        # XLA: "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, ...".
        out_of_memory = "CompileTimeHbmOom" in text or ("RESOURCE_EXHAUSTED" in text and "HBM" in text.upper())
        self.done("out_of_memory" if out_of_memory else "refused", f"{type(error).__name__}: {text}"[:_FAILURE_LENGTH])


def _answer(
    job: dict[str, Any],
    request: dict[str, Any],
    slice_: Slice,
    build: Callable[..., Any],
    traces: annotate.Traces,
    reply: Reply,
) -> None:
    rung = job["rung"]
    directory = Path(job["directory"])
    axes = mesh_axes(job["candidate"])
    candidate = {**job["candidate"], "mesh": [{"name": name, "size": size} for name, size in axes.items()]}
    layers = int(job.get("layers", 3))
    attention = "opaque" if rung == "propagate" else "tpu"

    concrete = attention == "tpu" or getattr(build, "on_devices", False)

    def mesh_of(axes: dict[str, int]) -> jax.sharding.Mesh | jax.sharding.AbstractMesh:
        return slice_.mesh(axes, job.get("placement"), concrete)

    mesh = mesh_of(axes)
    program = annotate.lowered_text(build, request, candidate, layers, attention, mesh_of, traces)
    if program is None:
        traces.made += 1
        function, arguments = build(request, candidate, mesh, layers, attention)
        traced = (function if hasattr(function, "trace") else jax.jit(function)).trace(*arguments)
        program = traced.lower(lowering_platforms=("tpu",))
    if rung == "propagate":
        _keep(directory, dump.Dumped(private.propagate(program, bool(job.get("reshard"))), ""))
        reply.done("ok")
        return
    dumped = directory / "dump"
    dumped.mkdir()
    options = {**dump.OPTIONS, **candidate.get("compiler_options", {}), "xla_dump_to": str(dumped)}
    suffix = dump.CODE_TEXT
    if rung == "passes":
        suffix = dump.PASSES_TEXT
        threading.Thread(target=_reply_after_passes, args=(dumped, directory, reply), daemon=True).start()
    if isinstance(program, str):
        private.compile_text(program, list(mesh.devices.flat), options)
    else:
        program.compile(compiler_options=options)
    _reply_with_dump(dumped, suffix, directory, reply)


def _reply_after_passes(dumped: Path, directory: Path, reply: Reply) -> None:
    # The zygote kills this process as soon as it has the answer: no code is generated.
    while not dump.passes_done(dumped):
        time.sleep(_POLL_SECONDS)
    _reply_with_dump(dumped, dump.PASSES_TEXT, directory, reply)


def _reply_with_dump(dumped: Path, suffix: str, directory: Path, reply: Reply) -> None:
    result = dump.read(dumped, suffix)
    if result is None:
        found = ", ".join(sorted(path.name for path in dumped.iterdir())) or "nothing"
        reply.done("refused", f"the compiler dumped no whole *{suffix}, only {found}: its version is not known")
        return
    _keep(directory, result)
    reply.done("ok")


def _keep(directory: Path, result: dump.Dumped) -> None:
    (directory / "text").write_text(result.text, encoding="utf-8")
    if result.memory_report:
        (directory / "memory_report").write_text(result.memory_report, encoding="utf-8")


def mesh_axes(candidate: dict[str, Any]) -> dict[str, int]:
    """Mesh axes and their sizes, major first, of a candidate's JSON: an object, or a list of {"name", "size"}."""
    mesh = candidate["mesh"]
    if not isinstance(mesh, dict):
        return {str(axis["name"]): int(axis["size"]) for axis in mesh}
    # An object has no order; the library's axes have always this one, others follow as given.
    known = [name for name in _MESH_AXES if name in mesh]
    return {name: int(mesh[name]) for name in [*known, *(name for name in mesh if name not in known)]}


class Slice:
    """The slice's devices, asked of the compiler when a mesh first needs them."""

    def __init__(self, name: str, coordinates: list[tuple[list[int], int]]) -> None:
        self._name = name
        self._coordinates = coordinates
        self._devices: list[Any] = []

    def devices(self) -> list[Any]:
        if not self._devices:
            self._devices = _devices(self._name, self._coordinates)
        return self._devices

    def mesh(
        self, axes: dict[str, int], placement: list[int] | None, concrete: bool
    ) -> jax.sharding.Mesh | jax.sharding.AbstractMesh:
        """The logical mesh; rank r, counted row-major, is on device placement[r], or r where there is none.

        One that is not concrete is of no particular devices: enough for a trace that nothing will compile.
        """
        devices = self.devices() if concrete else []
        count = len(self._coordinates)
        order = list(range(count)) if placement is None else placement
        if sorted(order) != list(range(count)):
            raise ValueError(f"placement {order} does not name each of the {count} devices once")
        if math.prod(axes.values()) != count:
            raise ValueError(f"mesh {axes} does not have the slice's {count} devices")
        if not concrete:
            return jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes))
        grid = numpy.empty(count, dtype=object)
        grid[:] = [devices[device] for device in order]
        return jax.sharding.Mesh(grid.reshape(tuple(axes.values())), tuple(axes))


def _devices(slice_name: str, coordinates: list[tuple[list[int], int]]) -> list[Any]:
    """The compiler's device of each of our ids. Its own order is by host, so coordinates and core decide."""
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=slice_name)
    except Exception as error:
        raise CompilerUnusableError(f"the TPU compiler does not know the slice {slice_name!r}: {error}") from error
    by_place = {(_padded(device.coords), device.core_on_chip): device for device in topology.devices}
    wanted = [(_padded(coordinate), core) for coordinate, core in coordinates]
    if sorted(by_place) != sorted(wanted):
        raise CompilerUnusableError(
            f"the TPU compiler's {slice_name} has {len(by_place)} devices at {sorted(by_place)[:4]} ..., "
            f"the plan's has {len(wanted)} at {sorted(wanted)[:4]} ...: name a slice both know"
        )
    return [by_place[place] for place in wanted]


def _padded(coordinate: Any) -> tuple[int, ...]:
    return (*coordinate, 0, 0, 0)[: max(3, len(coordinate))]
