"""Attention over a sharded sequence: one shard_map, three ways to compute what is local."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy
from jax.sharding import PartitionSpec

from aoizora.models.sharding import Sharding

AttentionImpl = Literal["tpu", "interpret", "exact", "opaque", "site"]
"""How the local attention is computed: Pallas splash attention; the same interpreted on any platform; plain JAX; a
custom call named OPAQUE_TARGET, which no platform runs, for tracing without the price of the kernel; or, in a trace
that many candidates share, a custom call named SITE_TARGET in place of all that depends on local shapes."""

OPAQUE_TARGET = "aoizora.attention"
"""Operands q [batch, heads, queries, head_dim], k and v [batch, heads, keys, head_dim], result as q; lengths are the
kernel's, padded to its blocks."""

SITE_TARGET = "aoizora.attention.site"
"""Operands as OPAQUE_TARGET's, not padded; keys and values divided like the sequence they come from. The C++ library's
`annotate` writes in its place what `attention` does there."""

_LANES = 128


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    keys: int,
    keys_axis: str | None,
    sharding: Sharding,
    impl: AttentionImpl,
) -> jax.Array:
    """softmax(q kᵀ / sqrt(head_dim)) v over [batch, heads, length, head_dim].

    Queries are divided over the sequence's mesh axes, keys over those of `keys_axis`; only the first `keys` keys count.
    The lengths must be multiples of their factors. q comes scaled by 1/sqrt(head_dim).
    """
    heads = sharding.activation_spec(("batch", "heads", "sequence", None))
    if impl == "site":
        kv = sharding.activation_spec(("batch", "heads", keys_axis, None))
        site = jax.ffi.ffi_call(SITE_TARGET, jax.ShapeDtypeStruct(q.shape, q.dtype))
        return jax.shard_map(site, mesh=sharding.mesh, in_specs=(heads, kv, kv), out_specs=heads, check_vma=False)(
            q, k, v
        )
    local = functools.partial(_local_attention, keys=keys, sharding=sharding, impl=impl)
    context = sharding.mesh_axes("sequence") if keys_axis == "sequence" else ()
    if context and sharding.attention == "ulysses":
        exchange = functools.partial(jax.lax.all_to_all, axis_name=context, tiled=True)

        def body(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            q, k, v = (exchange(x, split_axis=1, concat_axis=2) for x in (q, k, v))
            return exchange(local(q, k, v), split_axis=2, concat_axis=1)

        kv_spec = heads
    else:
        body, kv_spec = local, PartitionSpec(heads[0], heads[1], None, None)
    if sharding.mesh.size == 1:
        return body(q, k, v)
    return jax.shard_map(
        body, mesh=sharding.mesh, in_specs=(heads, kv_spec, kv_spec), out_specs=heads, check_vma=False
    )(q, k, v)


def _local_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, keys: int, sharding: Sharding, impl: AttentionImpl
) -> jax.Array:
    if impl == "exact":
        return _exact(q, k, v, keys)
    queries = q.shape[2]
    query_block = _block(sharding.query_block, queries)
    key_block = _block(sharding.key_block, k.shape[2])
    q, k, v = _pad(q, query_block), _pad(k, key_block), _pad(v, key_block)
    if impl == "opaque":
        out = jax.ffi.ffi_call(OPAQUE_TARGET, jax.ShapeDtypeStruct(q.shape, q.dtype))(q, k, v)
    else:
        out = _splash(q, k, v, keys, query_block, key_block, interpret=impl == "interpret")
    return out[:, :, :queries]


def _block(block: int, length: int) -> int:
    """The kernel's block for a length: a length below it takes one block of whole lanes."""
    return min(block, math.ceil(length / _LANES) * _LANES)


def _pad(x: jax.Array, block: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % block), (0, 0)))


def _exact(q: jax.Array, k: jax.Array, v: jax.Array, keys: int) -> jax.Array:
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
    logits = jnp.where(jnp.arange(k.shape[2]) < keys, logits, -jnp.inf)
    weights = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def _splash(
    q: jax.Array, k: jax.Array, v: jax.Array, keys: int, query_block: int, key_block: int, interpret: bool
) -> jax.Array:
    # Pallas takes half a second to import; only the kernel needs it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    heads, queries, padded_keys = q.shape[1], q.shape[2], k.shape[2]
    kernel = splash.make_splash_mha(
        mask=every_key(heads, queries, padded_keys),
        block_sizes=splash.BlockSizes(block_q=query_block, block_kv=key_block, block_kv_compute=key_block),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    if keys == padded_keys:
        return jax.vmap(kernel)(q, k, v)
    segments = splash.SegmentIds(
        q=jnp.zeros(queries, jnp.int32), kv=(jnp.arange(padded_keys) >= keys).astype(jnp.int32)
    )
    return jax.vmap(kernel, in_axes=(0, 0, 0, None))(q, k, v, segments)


@functools.lru_cache
def every_key(heads: int, queries: int, keys: int) -> Any:
    """The mask that hides nothing, as splash attention wants it: FullMask, without an array for each block.

    The library asks each block, twice, whether any and whether all of it is seen, and makes ones of its size for that:
    half a second for 75,600 tokens. One element answers the same. Equal calls give one mask, for
    which the library remembers what it found.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

    class EveryKey(splash_mask.FullMask):  # type: ignore[misc]  # mypy does not see jax
        def __getitem__(self, block: object) -> numpy.ndarray:
            return numpy.ones((1, 1), numpy.bool_)

    return splash_mask.MultiHeadMask([EveryKey((queries, keys))] * heads)
