"""One denoising step of a request under one candidate, ready to be lowered: the whole model, its depth capped."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from aoizora import _core
from aoizora.errors import InvalidRequest
from aoizora.models import wan
from aoizora.models.attention import AttentionImpl
from aoizora.models.sharding import Sharding

STAND_IN = "stand_in_"
"""How the name of a mesh axis starts that stands for a logical axis."""

Step = Callable[[wan.Params, jax.Array, jax.Array, jax.Array], jax.Array]
StepArgs = tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class _Wanted:
    """What a request says of the model."""

    config: wan.WanConfig
    latents_shape: tuple[int, ...]
    text_length: int
    dtype: str
    table: dict[str, Any]


@functools.lru_cache(maxsize=8)
def _wanted(request_json: str) -> _Wanted:
    request = json.loads(_core.request_json(request_json))
    sizes = json.loads(_core.wan_config(request["model"]))
    text_length = sizes.pop("text_length")
    patch = tuple(sizes.pop(name) for name in ("patch_t", "patch_h", "patch_w"))
    config = wan.WanConfig(**{**sizes, "patch_size": patch})
    latents_shape = tuple(_core.latent_shape(json.dumps(request)))
    table = config.table(latents_shape, text_length, request["dtype"])
    return _Wanted(config, latents_shape, text_length, request["dtype"], table)


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
    wanted = _wanted(json.dumps(dict(request), sort_keys=True))
    config = replace(wanted.config, num_layers=layers)
    sharding = Sharding(mesh, candidate)
    batch = wanted.latents_shape[0]
    table = config.table(wanted.latents_shape, wanted.text_length, wanted.dtype)
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
        batched(wanted.latents_shape, jnp.float32),
        batched((batch,), jnp.float32),
        batched((batch, wanted.text_length, config.text_dim), wan.jax_dtype(wanted.dtype)),
    )


_ANNOTATION_AXES = ("batch", "sequence", "heads", "embed", "mlp")
_MESH_AXES = ("data", "fsdp", "context", "tensor")


def stand_in(
    request: Mapping[str, Any], candidate: Mapping[str, Any], attention_impl: AttentionImpl
) -> tuple[dict[str, Any], AttentionImpl] | None:
    """What to build in a candidate's place, so that all candidates with the same answer share one trace; the C++
    library's `annotate` makes each one's program of it. None where a candidate needs a trace of its own.

    Each logical axis is divided by a mesh axis of its own. No rule of these axes reaches the lowered program but
    through shardings and through what one device holds in an attention. "opaque" becomes "site", which leaves the
    latter to `annotate`; a real kernel's mesh axes have the sizes it sees.
    """
    sizes = {axis["name"]: int(axis["size"]) for axis in candidate["mesh"]}
    devices = math.prod(sizes.values())
    if tuple(sizes) != _MESH_AXES or devices == 1 or not set(candidate["rules"]) <= set(_ANNOTATION_AXES):
        return None
    sharding = Sharding(AbstractMesh(tuple(sizes.values()), tuple(sizes)), candidate)
    table = _wanted(json.dumps(dict(request), sort_keys=True)).table
    _check(table, sharding)
    stands = {
        "attention": "gathered",
        "blocks": {"queries": sharding.query_block, "keys": sharding.key_block},
        "rules": {axis: [STAND_IN + axis] for axis in _ANNOTATION_AXES},
        "lengths": {"sequence": sharding.padded(table["tokens"], "sequence")},
    }
    divided = dict.fromkeys(_ANNOTATION_AXES, 1)
    if attention_impl == "tpu":
        stands["attention"] = sharding.attention if sharding.mesh_axes("sequence") else "gathered"
        entries = sharding.activation_spec(("batch", "heads", "sequence"))
        for axis, entry in zip(("batch", "heads", "sequence"), entries, strict=True):
            names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            divided[axis] = math.prod(sizes[name] for name in names)
    mesh = [{"name": STAND_IN + axis, "size": divided[axis], "stand_in": True} for axis in _ANNOTATION_AXES]
    mesh.append({"name": "rest", "size": devices // math.prod(divided.values())})
    return {**stands, "mesh": mesh}, "site" if attention_impl == "opaque" else attention_impl


build_step.stand_in = stand_in  # type: ignore[attr-defined]


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
