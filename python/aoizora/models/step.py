"""One denoising step of a request under one candidate, ready to be lowered: the whole model, its depth capped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from aoizora import _core
from aoizora.errors import InvalidRequest
from aoizora.models import wan
from aoizora.models.attention import AttentionImpl
from aoizora.models.sharding import Sharding

Step = Callable[[wan.Params, jax.Array, jax.Array, jax.Array], jax.Array]
StepArgs = tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]


def build_step(
    request: Mapping[str, Any],
    candidate: Mapping[str, Any],
    mesh: Mesh,
    layers: int,
    attention_impl: AttentionImpl = "tpu",
) -> tuple[Step, StepArgs]:
    """The step and the shapes of its arguments (parameters, latents, timestep, text): `jax.jit(step).lower(*shapes)`.

    The proxy is the deployed model with `layers` trips of its loop: entry, conditioning and output path as they are.
    """
    if layers < 1:
        raise InvalidRequest(f"layers is {layers}; it must be 1 or more")
    request = json.loads(_core.request_json(json.dumps(dict(request))))
    sizes = json.loads(_core.wan_config(request["model"]))
    text_length = sizes.pop("text_length")
    patch = tuple(sizes.pop(name) for name in ("patch_t", "patch_h", "patch_w"))
    config = wan.WanConfig(**{**sizes, "num_layers": layers, "patch_size": patch})
    sharding = Sharding(mesh, candidate)
    latents_shape = tuple(_core.latent_shape(json.dumps(request)))
    batch = latents_shape[0]
    table = config.table(latents_shape, text_length, request["dtype"])
    _check(table, sharding)

    def step(params: wan.Params, latents: jax.Array, timestep: jax.Array, text: jax.Array) -> jax.Array:
        return wan.forward(
            params, latents, timestep, text, config=config, sharding=sharding, attention_impl=attention_impl
        )

    by_batch = NamedSharding(mesh, sharding.activation_spec(["batch"]))

    def batched(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=by_batch)

    return step, (
        wan.parameter_shapes(table, sharding),
        batched(latents_shape, jnp.float32),
        batched((batch,), jnp.float32),
        batched((batch, text_length, config.text_dim), wan.jax_dtype(request["dtype"])),
    )


# The rules of these axes reach the lowered program only through sharding annotations: no shape and no operation depends
# on them, so that candidates that differ in no other rule share a trace.
build_step.annotation_axes = ("embed", "mlp")  # type: ignore[attr-defined]


def _check(table: Mapping[str, Any], sharding: Sharding) -> None:
    """Refuses a candidate that does not divide this model evenly, as its arguments and shard_map need it."""
    for axis in table["axes"]:
        if axis["kind"] == "sequence":  # padded
            continue
        if axis["size"] % sharding.factor(axis["name"]):
            raise InvalidRequest(f"{sharding.factor(axis['name'])} ways do not divide {axis['name']} of {axis['size']}")
    if sharding.attention == "ulysses":
        heads = next(axis["size"] for axis in table["axes"] if axis["name"] == "heads")
        ways = sharding.factor("heads") * sharding.factor("sequence")
        if heads % ways:
            raise InvalidRequest(
                f"ulysses divides heads and sequence together {ways} ways, which do not divide {heads} heads"
            )
