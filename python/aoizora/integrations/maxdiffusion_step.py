"""MaxDiffusion's own WanModel as the planner's program: `aoizora plan --source maxdiffusion`.

Its attention puts a kernel into a shard_map of its own, so what a device holds is in the trace: each candidate has a
trace of its own, under the candidate's mesh and rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from aoizora import _core
from aoizora.integrations import maxdiffusion
from aoizora.models.wan import jax_dtype

# Only where these are installed is this module imported; no checker of ours needs them.
flax: Any = import_module("flax")
nn: Any = import_module("flax.linen")
nnx: Any = import_module("flax.nnx")
partitioning: Any = import_module("flax.linen.partitioning")
max_utils: Any = import_module("maxdiffusion.max_utils")
transformer: Any = import_module("maxdiffusion.models.wan.transformers.transformer_wan")

_TEXT_DIM = 4096  # of its text encoder, umt5-xxl


def build(
    request: Mapping[str, Any], candidate: Mapping[str, Any], mesh: Any, layers: int, attention: str = "tpu"
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Its denoising step and the shapes of its arguments, as aoizora.models.build_step gives ours."""
    del attention  # its kernel is in the program at every rung
    flax.config.update("flax_always_shard_variable", False)  # as its generate_wan does
    rules = (
        *maxdiffusion.as_flax(maxdiffusion.rules_of(candidate["rules"], candidate["attention"])),
        ("layers_per_stage", None),
    )
    request = {name: value for name, value in request.items() if name != "source"}
    dtype = jax_dtype(request["dtype"])
    sizes = json.loads(_core.wan_config(request["model"]))
    shape = tuple(_core.latent_shape(json.dumps(request)))

    def make(rngs: Any) -> Any:
        blocks = candidate["blocks"]
        keys = SimpleNamespace(
            flash_block_sizes=maxdiffusion.block_sizes(int(blocks["queries"]), int(blocks["keys"])),
            attention=maxdiffusion.attention_name(candidate["attention"]),
        )
        return transformer.WanModel(
            rngs=rngs,
            **{name: sizes[name] for name in ("num_attention_heads", "attention_head_dim", "ffn_dim")},
            num_layers=layers,
            mesh=mesh,
            dtype=dtype,
            weights_dtype=dtype,
            attention=keys.attention,
            flash_block_sizes=max_utils.get_flash_block_sizes(keys),
            flash_min_seq_length=0,  # the kernel for cross attention too, as planned
            mask_padding_tokens=True,
            scan_layers=True,
            attention_config={
                "use_base2_exp": True,
                "use_experimental_scheduler": True,
                "ulysses_shards": -1,
                "ulysses_attention_chunks": 1,
            },
        )

    with mesh, partitioning.axis_rules(rules):
        graph, state, rest = nnx.split(nnx.eval_shape(make, nnx.Rngs(0)), nnx.Param, ...)
    with mesh:  # outside of the rules: they are resolved here, once
        places = dict(nnx.to_flat_state(nn.logical_to_mesh_sharding(nnx.get_partition_spec(state), mesh, rules)))
    flat = {}
    for name, variable in nnx.to_flat_state(state):
        where = places[name].get_value() if hasattr(places[name], "get_value") else places[name]
        flat[name] = variable.replace(jax.ShapeDtypeStruct(variable.shape, dtype, sharding=where))

    def step(state: Any, rest: Any, latents: jax.Array, timestep: jax.Array, text: jax.Array) -> jax.Array:
        with mesh, partitioning.axis_rules(rules):
            model = nnx.merge(graph, state, rest)
            result: jax.Array = model(hidden_states=latents, timestep=timestep, encoder_hidden_states=text)
        return result

    batched = NamedSharding(mesh, nn.logical_to_mesh_axes(("activation_batch",), rules))
    return step, (
        nnx.from_flat_state(flat),
        rest,
        jax.ShapeDtypeStruct(shape, dtype, sharding=batched),
        jax.ShapeDtypeStruct(shape[:1], jnp.float32, sharding=batched),
        jax.ShapeDtypeStruct((shape[0], sizes["text_length"], _TEXT_DIM), dtype, sharding=batched),
    )


build.on_devices = True  # type: ignore[attr-defined]
