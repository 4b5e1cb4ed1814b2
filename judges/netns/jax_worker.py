"""One process of a multi-process JAX run on CPU: times real collectives and writes its seconds to a file.

A job (JSON) holds `devices` of the mesh (any nesting), names of its `axes` and `steps`, [primitive, axis, words], one
after the other; one process is one device.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AGREEMENT = 0.01
"""Of the three quickest runs: what else the machine does only makes a run slower, so more runs are made until then."""
MOST_RUNS = 12


def _settled(seconds: list[float]) -> bool:
    quickest = sorted(seconds[1:])[:3]  # the first run compiles, and windows still grow in it
    return len(quickest) == 3 and quickest[2] <= quickest[0] * (1 + AGREEMENT)


def _program(mesh: Mesh, steps: list[tuple[str, str, int]]) -> Any:
    """The steps in turn; each takes something of the result before, so that none starts early."""

    def run(seed: Any) -> Any:
        carried = seed[0]
        for primitive, axis, words in steps:
            size = mesh.shape[axis]
            if primitive == "psum":
                carried = jax.lax.psum(jnp.full((words,), carried), axis)[-1] / size
            elif primitive == "all_gather":
                carried = jax.lax.all_gather(jnp.full((words // size,), carried), axis, tiled=True)[-1]
            elif primitive == "ppermute":
                pairs = [(k, (k + 1) % size) for k in range(size)]
                carried = jax.lax.ppermute(jnp.full((words,), carried), axis, pairs)[-1]
            else:
                raise ValueError(f"no primitive {primitive}")
        return carried[None]

    spec = PartitionSpec(mesh.axis_names)
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def main() -> None:
    """Runs every job of the file until it is settled in all processes, and writes the seconds of each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)  # no traffic once the run is gone
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(options.coordinator, options.processes, options.process, initialization_timeout=120)
    wanted = json.loads(options.jobs.read_text())
    devices = {device.process_index: device for device in jax.devices()}
    everyone = Mesh(np.array([devices[k] for k in range(options.processes)]), ("all",))
    meet = _program(everyone, [("psum", "all", 1)])

    def seeds(mesh: Mesh, seed: float = 1) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        return jax.make_array_from_callback((options.processes,), sharding, lambda _: np.full(1, seed, np.float32))

    seconds = []
    for job in wanted["jobs"]:
        order = np.vectorize(devices.__getitem__, otypes=[object])(np.array(job["devices"]))
        mesh = Mesh(order, tuple(job["axes"]))
        program, seed = _program(mesh, [tuple(step) for step in job["steps"]]), seeds(mesh)
        runs: list[float] = []
        # All begin together, and go on while one is not settled.
        while meet(seeds(everyone, not _settled(runs))).addressable_data(0)[0] > 0 and len(runs) < MOST_RUNS:
            begin = time.perf_counter()
            jax.block_until_ready(program(seed))
            runs.append(time.perf_counter() - begin)
        seconds.append(runs)
    options.out.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
