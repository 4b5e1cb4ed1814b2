"""MaxDiffusion's own WanModel under a plan's mesh and rules, lowered and compiled for the TPU up to the HLO passes:
`python maxdiffusion_model.py PLAN OUT` writes the optimized HLO."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import partitioning
from jax.experimental import topologies
from jax.sharding import NamedSharding
from maxdiffusion import max_utils
from maxdiffusion.models.wan.transformers.transformer_wan import WanModel

from aoizora import Plan, _core
from aoizora.compiler import dump
from aoizora.integrations import maxdiffusion

LAYERS = 3


class Keys:
    """The keys of a plan as attributes, as its helpers read them."""

    def __init__(self, plan: Plan) -> None:
        self.__dict__.update(maxdiffusion.settings(plan))


def main(plan_path: str, out: str) -> None:
    flax.config.update("flax_always_shard_variable", False)  # as its generate_wan does
    plan = Plan.load(plan_path)
    request = plan.data["request"]
    topology = topologies.get_topology_desc(platform="tpu", topology_name=plan.data["slice"]["name"])
    mesh = plan.mesh(list(topology.devices))
    keys: Any = Keys(plan)
    rules = (*maxdiffusion.flax_rules(plan), ("layers_per_stage", None))
    sizes = json.loads(_core.wan_config(request["model"]))
    shape = tuple(_core.latent_shape(json.dumps(request)))

    def make(rngs: nnx.Rngs) -> WanModel:
        return WanModel(
            rngs=rngs,
            **{name: sizes[name] for name in ("num_attention_heads", "attention_head_dim", "ffn_dim")},
            num_layers=LAYERS,
            mesh=mesh,
            dtype=jnp.bfloat16,
            weights_dtype=jnp.bfloat16,
            attention=keys.attention,
            flash_block_sizes=max_utils.get_flash_block_sizes(keys),
            flash_min_seq_length=keys.flash_min_seq_length,
            mask_padding_tokens=keys.mask_padding_tokens,
            scan_layers=True,
            attention_config={
                "use_base2_exp": True,
                "use_experimental_scheduler": True,
                "ulysses_shards": keys.ulysses_shards,
                "ulysses_attention_chunks": keys.ulysses_attention_chunks,
            },
        )

    with mesh, partitioning.axis_rules(rules):
        graph, state, rest = nnx.split(nnx.eval_shape(make, nnx.Rngs(0)), nnx.Param, ...)
    with mesh:  # outside of the rules: they are resolved here, once
        places = dict(nnx.to_flat_state(nn.logical_to_mesh_sharding(nnx.get_partition_spec(state), mesh, rules)))
    flat = {}
    for name, variable in nnx.to_flat_state(state):
        where = places[name].get_value() if hasattr(places[name], "get_value") else places[name]
        flat[name] = variable.replace(jax.ShapeDtypeStruct(variable.shape, jnp.bfloat16, sharding=where))

    def step(state: Any, rest: Any, latents: jax.Array, timestep: jax.Array, text: jax.Array) -> jax.Array:
        model = nnx.merge(graph, state, rest)
        result: jax.Array = model(hidden_states=latents, timestep=timestep, encoder_hidden_states=text)
        return result

    batched = NamedSharding(mesh, nn.logical_to_mesh_axes(("activation_batch",), rules))
    arguments = [
        jax.ShapeDtypeStruct(each, dtype, sharding=batched)
        for each, dtype in (
            (shape, jnp.bfloat16),
            (shape[:1], jnp.float32),
            ((shape[0], sizes["text_length"], 4096), jnp.bfloat16),
        )
    ]
    with mesh, partitioning.axis_rules(rules):
        traced = jax.jit(step).trace(nnx.from_flat_state(flat), rest, *arguments)
        lowered = traced.lower(lowering_platforms=("tpu",))
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
