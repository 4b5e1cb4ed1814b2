"""MaxDiffusion's own WanModel under a plan's mesh and rules, lowered and compiled for the TPU up to the HLO passes:
`python maxdiffusion_model.py PLAN OUT` writes the optimized HLO."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
from jax.experimental import topologies

from aoizora import Plan
from aoizora.compiler import dump
from aoizora.integrations import maxdiffusion_step

LAYERS = 3


def main(plan_path: str, out: str) -> None:
    plan = Plan.load(plan_path)
    topology = topologies.get_topology_desc(platform="tpu", topology_name=plan.data["slice"]["name"])
    mesh = plan.mesh(list(topology.devices))
    step, arguments = maxdiffusion_step.build(plan.request, plan.candidate, mesh, LAYERS)
    lowered = jax.jit(step).trace(*arguments).lower(lowering_platforms=("tpu",))
    folder = Path(tempfile.mkdtemp())

    def leave_after_passes() -> None:
        while not dump.passes_done(folder):
            time.sleep(0.05)
        found = dump.read(folder, dump.PASSES_TEXT)
        Path(out).write_text(found.text if found else "")
        os._exit(0)

    threading.Thread(target=leave_after_passes, daemon=True).start()
    lowered.compile(compiler_options={**plan.data["compiler_options"], "xla_dump_to": str(folder)})


if __name__ == "__main__":
    main(*sys.argv[1:])
