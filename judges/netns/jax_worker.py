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
    """Runs every job of the file and writes the seconds of each repeat."""
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

    def seeds(mesh: Mesh) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        return jax.make_array_from_callback((options.processes,), sharding, lambda _: np.ones(1, np.float32))

    met = seeds(everyone)
    seconds = []
    for job in wanted["jobs"]:
        order = np.vectorize(devices.__getitem__, otypes=[object])(np.array(job["devices"]))
        mesh = Mesh(order, tuple(job["axes"]))
        program, seed = _program(mesh, [tuple(step) for step in job["steps"]]), seeds(mesh)
        repeats = []
        for _ in range(wanted["repeats"]):
            jax.block_until_ready(meet(met))
            begin = time.perf_counter()
            jax.block_until_ready(program(seed))
            repeats.append(time.perf_counter() - begin)
        seconds.append(repeats)
    options.out.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
