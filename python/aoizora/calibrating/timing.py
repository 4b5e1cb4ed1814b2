"""What the devices that are here take for a microbenchmark, in one process or in several."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from aoizora.calibrating.cases import HEAD_DIM, HEADS, QUERIES, TILE_BYTES, Case
from aoizora.errors import InvalidRequest
from aoizora.models.attention import attention
from aoizora.models.sharding import Sharding

Step = Callable[[jax.Array], jax.Array]
Array = Callable[[tuple[int, ...], Any, NamedSharding], jax.Array]

_MOST_ROUNDS = 2000
_ATTEMPTS = 3


class Effort(NamedTuple):
    """How much is spent on one microbenchmark."""

    repeats: int = 5
    warm_up: int = 2
    seconds: float = 0.03
    """A run goes on for about so long."""


class Program(NamedTuple):
    looped: Any
    arguments: tuple[jax.Array, ...]

    def run(self, count: int) -> object:
        return self.looped(np.int32(count), *self.arguments)


class Meeting:
    """Brings all processes to one point, and their times to all of them. Nothing of that where there is one process."""

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self._wait: Callable[[], object] | None = None
        if jax.process_count() > 1:
            mesh = Mesh(np.array(devices), ("all",))
            ones = _zeros((len(devices),), jnp.float32, NamedSharding(mesh, PartitionSpec("all")))
            total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))
            self._wait = lambda: jax.block_until_ready(total(ones))

    def wait(self) -> None:
        if self._wait is not None:
            self._wait()

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """Of each run, what the slowest process took: the same on all."""
        if self._wait is None:
            return list(seconds)
        from jax.experimental import multihost_utils

        gathered = multihost_utils.process_allgather(np.asarray(seconds, np.float32))
        return [float(each) for each in np.asarray(gathered).max(axis=0)]

    def timed(self, run: Callable[..., object], *arguments: int) -> float:
        """Seconds of one run in this process."""
        self.wait()
        started = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        return time.perf_counter() - started


def seconds_of(case: Case, devices: Sequence[jax.Device], meeting: Meeting, effort: Effort) -> float:
    """One of it, in steady state: what a run of many takes beyond a run of none, medians of both."""
    run = program(case, devices).run
    first = min(meeting.slowest([meeting.timed(run, 1) for _ in range(1 + effort.warm_up)]))
    rounds = max(1, min(_MOST_ROUNDS, round(effort.seconds / max(first, 1e-7))))
    for _ in range(_ATTEMPTS):
        counts = (0, rounds) * effort.repeats
        times = meeting.slowest([meeting.timed(run, count) for count in counts])
        empty, full = statistics.median(times[0::2]), statistics.median(times[1::2])
        if full > 2 * empty or rounds == _MOST_ROUNDS:
            break
        rounds = min(_MOST_ROUNDS, 4 * rounds)  # most of it was the start of the program
    if full <= empty:
        raise InvalidRequest(
            f"{case.kind}, {case.what}, {case.size_text}: {2 * rounds} of them took no longer than none; the machine "
            "is busy with something else: try again, or longer runs (--seconds)"
        )
    return (full - empty) / (2 * rounds)


def _zeros(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> jax.Array:
    """Which every operation here leaves zeros."""
    part = np.zeros(sharding.shard_shape(shape), dtype)
    return jax.make_array_from_callback(shape, sharding, lambda _: part)


def program(case: Case, devices: Sequence[jax.Device], array: Array = _zeros) -> Program:
    """Runs the case two times as often as it is told, each when the one before has ended on all devices it joins.

    Two a round, so that what one writes the other reads and the compiler copies nothing between rounds; of permutes
    the second goes back where the first came from, which nobody could otherwise wait for.
    """
    if case.kind == "attention":
        return _attention(case, devices, array)
    if case.kind == "matmul":
        dtype = jnp.bfloat16 if devices[0].platform == "tpu" else jnp.float32
        return _looped(_mesh(devices, None), _product, _product, array, (case.size, case.size), dtype)
    permute = case.kind == "collective-permute"
    members = 1 if permute else len(case.groups[0])
    tiles = case.size // TILE_BYTES // (members if case.kind == "all-gather" else 1)
    mesh = _mesh(devices, None if permute else case.groups)
    back = case._replace(groups=tuple((b, a) for a, b in case.groups)) if permute else case
    return _looped(mesh, _step(case), _step(back), array, (tiles, 8, 128), jnp.float32)


def _mesh(devices: Sequence[jax.Device], groups: Sequence[Sequence[int]] | None) -> Mesh:
    order = [list(range(len(devices)))] if groups is None else groups
    grid = np.empty((len(order), len(order[0])), dtype=object)
    for row, group in enumerate(order):
        grid[row] = [devices[device] for device in group]
    return Mesh(grid, ("group", "member"))


def _step(case: Case) -> Step:
    """One of a collective, its result as large as its operand."""
    if case.kind == "collective-permute":
        return lambda x: jax.lax.ppermute(x, "member", case.groups)
    if case.kind == "all-reduce":
        return lambda x: jax.lax.psum(x, "member")
    if case.kind == "all-to-all":
        return lambda x: jax.lax.all_to_all(x, "member", 0, 0, tiled=True)
    if case.kind == "all-gather":
        # The barrier keeps the compiler from gathering only what is read.
        return lambda x: jax.lax.optimization_barrier(jax.lax.all_gather(x, "member", tiled=True))[: x.shape[0]]
    return lambda x: jax.lax.dynamic_update_slice(x, jax.lax.psum_scatter(x, "member", tiled=True), (0, 0, 0))


def _product(x: jax.Array) -> jax.Array:
    return jnp.dot(x, x)


def _looped(mesh: Mesh, first: Step, second: Step, array: Array, shape: tuple[int, ...], dtype: Any) -> Program:
    """`shape` is one device's."""

    def rounds(count: jax.Array, x: jax.Array) -> jax.Array:
        def two(_: jax.Array, x: jax.Array) -> jax.Array:
            return second(jax.lax.optimization_barrier(first(x)))

        return jax.lax.fori_loop(0, count, two, x)

    divided = PartitionSpec(mesh.axis_names)
    looped = jax.jit(
        jax.shard_map(rounds, mesh=mesh, in_specs=(PartitionSpec(), divided), out_specs=divided, check_vma=False)
    )
    whole = (shape[0] * mesh.size, *shape[1:])
    return Program(looped, (array(whole, dtype, NamedSharding(mesh, divided)),))


def _attention(case: Case, devices: Sequence[jax.Device], array: Array) -> Program:
    """The kernel on every device, as the planner prices it: whole blocks, nothing masked."""
    mesh = Mesh(np.array(devices), ("all",))
    sharding = Sharding(mesh, {"mesh": [{"name": "all", "size": len(devices)}], "rules": {}})

    def rounds(count: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def one(_: jax.Array, q: jax.Array) -> jax.Array:
            return attention(q, k, v, keys=case.size, keys_axis=None, sharding=sharding, impl="tpu")

        return jax.lax.fori_loop(0, 2 * count, one, q)

    on_all = NamedSharding(mesh, PartitionSpec())

    lengths = (QUERIES, case.size, case.size)
    arguments = tuple(array((1, HEADS, length, HEAD_DIM), jnp.bfloat16, on_all) for length in lengths)
    return Program(jax.jit(rounds, out_shardings=on_all), arguments)
