"""Wan 2.1's video transformer in plain JAX.

Parameters are a flat dict under the names of the public checkpoint; those of the blocks are stacked along the layers
and named without their number ("blocks.attn1.to_q.weight"). The list of them, with shapes and logical axes, is the
workload table of the C++ library. Matrices are [in, out], in the checkpoint [out, in]; so is the patch convolution.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aoizora import _core
from aoizora.errors import InvalidRequest
from aoizora.models.attention import AttentionImpl, attention
from aoizora.models.sharding import TILE_ROWS, Sharding

Params = dict[str, jax.Array]


@dataclass(frozen=True)
class WanConfig:
    """Sizes under the names of the public checkpoint's config; `text_length` comes with the request."""

    num_attention_heads: int = 40
    attention_head_dim: int = 128
    ffn_dim: int = 13824
    num_layers: int = 40
    text_dim: int = 4096
    freq_dim: int = 256
    patch_size: tuple[int, int, int] = (1, 2, 2)
    in_channels: int = 16
    out_channels: int = 16
    eps: float = 1e-6

    @property
    def embed(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    def table(self, latents_shape: tuple[int, ...], text_length: int, dtype: str) -> dict[str, Any]:
        """The workload table of this transformer on latents of [batch, channels, frames, height, width]."""
        sizes = asdict(self)
        del sizes["eps"], sizes["patch_size"]
        sizes |= dict(zip(("patch_t", "patch_h", "patch_w"), self.patch_size, strict=True))
        sizes["text_length"] = text_length
        batch, _, frames, height, width = latents_shape
        table: dict[str, Any] = json.loads(_core.wan_workload(json.dumps(sizes), batch, frames, height, width, dtype))
        return table


def parameter_shapes(table: Mapping[str, Any], sharding: Sharding) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape, dtype and sharding of each parameter; those of the blocks stacked along the layers."""
    shapes = {}
    for tensor in table["weights"]:
        stacked = tensor["name"].startswith("blocks.")
        dims = [dim["size"] for dim in tensor["dims"]]
        axes = [dim["axis"] or None for dim in tensor["dims"]]
        shape = (tensor["repeat"], *dims) if stacked else tuple(dims)
        shapes[tensor["name"]] = jax.ShapeDtypeStruct(
            shape, jax_dtype(tensor["dtype"]), sharding=sharding.weight([None, *axes] if stacked else axes)
        )
    return shapes


def jax_dtype(name: str) -> np.dtype[Any]:
    """The element type of a table's name for it."""
    dtype: np.dtype[Any] = np.dtype({"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}[name])
    return dtype


def forward(
    params: Params,
    latents: jax.Array,
    timestep: jax.Array,
    text: jax.Array,
    *,
    config: WanConfig,
    sharding: Sharding,
    attention_impl: AttentionImpl,
) -> jax.Array:
    """One pass: latents [batch, channels, frames, height, width], timestep [batch], text [batch, length, text_dim]."""
    grid = tuple(size // patch for size, patch in zip(latents.shape[2:], config.patch_size, strict=True))
    tokens = int(np.prod(grid))
    padding = sharding.padded(tokens, "sequence") - tokens
    x = _entry(params, latents, grid, padding, config, sharding)
    time, modulation = _time_conditioning(params, timestep, config, sharding)
    context = _text_conditioning(params, text, sharding)
    rotary = _rotary_tables(grid, padding, config.attention_head_dim, sharding)

    def block(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        return _block(layer, x, context, modulation, rotary, tokens, config, sharding, attention_impl), None

    prefix = "blocks."
    stacked = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    x, _ = jax.lax.scan(block, x, stacked)
    return _exit(params, x, time, grid, latents.dtype, config, sharding)


def _linear(params: Params, name: str, x: jax.Array) -> jax.Array:
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def _layer_norm(x: jax.Array, eps: float) -> jax.Array:
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)


def _entry(
    params: Params, latents: jax.Array, grid: tuple[int, ...], padding: int, config: WanConfig, sharding: Sharding
) -> jax.Array:
    """Latents to tokens [batch, sequence, embed]."""
    batch, channels = latents.shape[:2]
    (f, h, w), (pt, ph, pw) = grid, config.patch_size
    x = latents.reshape(batch, channels, f, pt, h, ph, w, pw).transpose(0, 2, 4, 6, 1, 3, 5, 7)
    x = x.reshape(batch, f * h * w, channels * pt * ph * pw).astype(params["patch_embedding.weight"].dtype)
    x = sharding.constrain(jnp.pad(x, ((0, 0), (0, padding), (0, 0))), "batch", "sequence", None)
    return sharding.constrain(_linear(params, "patch_embedding", x), "batch", "sequence", None)


def _time_conditioning(
    params: Params, timestep: jax.Array, config: WanConfig, sharding: Sharding
) -> tuple[jax.Array, jax.Array]:
    """The time embedding [batch, embed] and its projection [batch, 6, embed] to every block's modulation, in f32."""
    name = "condition_embedder.time_embedder"
    half = config.freq_dim // 2
    frequency = np.exp(np.arange(half) * (-np.log(1e4) / half)).astype(np.float32)
    angle = timestep.astype(jnp.float32)[:, None] * frequency
    wave = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1).astype(params[f"{name}.linear_1.weight"].dtype)
    hidden = sharding.constrain(jax.nn.silu(_linear(params, f"{name}.linear_1", wave)), "batch", "heads")
    time = sharding.constrain(_linear(params, f"{name}.linear_2", hidden), "batch", None)
    modulation = _linear(params, "condition_embedder.time_proj", jax.nn.silu(time))
    modulation = modulation.reshape(-1, 6, config.embed).astype(jnp.float32)
    return time.astype(jnp.float32), sharding.constrain(modulation, "batch", None, None)


def _text_conditioning(params: Params, text: jax.Array, sharding: Sharding) -> jax.Array:
    name = "condition_embedder.text_embedder"
    text = text.astype(params[f"{name}.linear_1.weight"].dtype)
    hidden = _linear(params, f"{name}.linear_1", text)
    hidden = sharding.constrain(jax.nn.gelu(hidden, approximate=True), "batch", "text", "heads")
    return sharding.constrain(_linear(params, f"{name}.linear_2", hidden), "batch", "text", None)


def _rotary_tables(
    grid: tuple[int, ...], padding: int, head_dim: int, sharding: Sharding
) -> tuple[jax.Array, jax.Array]:
    """cos and sin of each token's angles [sequence, head_dim]: one a pair of channels; frame, row, column in turn."""
    side = 2 * (head_dim // 6)

    def table(function: Callable[[Any], Any]) -> jax.Array:
        parts = []
        for axis, (size, dim) in enumerate(zip(grid, (head_dim - 2 * side, side, side), strict=True)):
            angles = np.outer(np.arange(size), 1.0 / 1e4 ** (np.arange(0, dim, 2) / dim)).repeat(2, axis=1)
            shape = [1, 1, 1, dim]
            shape[axis] = size
            parts.append(jnp.broadcast_to(jnp.asarray(function(angles), jnp.float32).reshape(shape), (*grid, dim)))
        whole = jnp.concatenate(parts, -1).reshape(-1, head_dim)
        return sharding.constrain(jnp.pad(whole, ((0, padding), (0, 0))), "sequence", None)

    return table(np.cos), table(np.sin)


def _split_heads(x: jax.Array, length_axis: str, config: WanConfig, sharding: Sharding) -> jax.Array:
    """[batch, length, heads x head_dim] to [batch, heads, length, head_dim], by whole tiles where the length allows:
    the compiler makes two transposes of the plain one."""
    batch, length, _ = x.shape
    rows = TILE_ROWS if length % (TILE_ROWS * sharding.factor(length_axis)) == 0 else 1
    x = x.reshape(batch, length // rows, rows, config.num_attention_heads, config.attention_head_dim)
    x = x.transpose(0, 3, 1, 2, 4).reshape(batch, config.num_attention_heads, length, config.attention_head_dim)
    return sharding.constrain(x, "batch", "heads", length_axis, None)


def _merge_heads(x: jax.Array, length_axis: str, sharding: Sharding) -> jax.Array:
    """The inverse of `_split_heads`."""
    batch, heads, length, head_dim = x.shape
    rows = TILE_ROWS if length % (TILE_ROWS * sharding.factor(length_axis)) == 0 else 1
    x = x.reshape(batch, heads, length // rows, rows, head_dim)
    x = x.transpose(0, 2, 3, 1, 4).reshape(batch, length, heads * head_dim)
    return sharding.constrain(x, "batch", length_axis, "heads")


def _heads(
    layer: Params, name: str, which: str, x: jax.Array, length_axis: str, config: WanConfig, sharding: Sharding
) -> jax.Array:
    """Queries ("q", scaled by 1/sqrt(head_dim)) or keys ("k") of x, RMS-normalised over all heads, as [batch, heads,
    length, head_dim]."""
    x = sharding.constrain(_linear(layer, f"{name}.to_{which}", x), "batch", length_axis, "heads")
    mean_square = jnp.square(x.astype(jnp.float32)).mean(-1)
    inverse = jax.lax.rsqrt(mean_square + config.eps)[:, None, :, None]
    scale = layer[f"{name}.norm_{which}.weight"].reshape(config.num_attention_heads, 1, config.attention_head_dim)
    scale = scale * (config.attention_head_dim**-0.5 if which == "q" else 1.0)
    return (_split_heads(x, length_axis, config, sharding).astype(jnp.float32) * inverse * scale).astype(x.dtype)


def _rotate(x: jax.Array, rotary: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns the pairs of each head's channels by the token's angles: (a, b) -> (a cos - b sin, b cos + a sin).

    (-b, a) comes from a product with a matrix of 0, 1 and -1, which is exact and, unlike any slicing of odd and even
    channels, leaves the layout alone.
    """
    cos, sin = rotary
    head_dim = x.shape[-1]
    even = np.arange(0, head_dim, 2)
    turn = np.zeros((head_dim, head_dim), np.float32)
    turn[even + 1, even], turn[even, even + 1] = -1, 1
    turned = jnp.einsum(
        "bhtk,kj->bhtj",
        x,
        jnp.asarray(turn, x.dtype),
        precision=jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    return (x.astype(jnp.float32) * cos + turned * sin).astype(x.dtype)


def _attend(
    layer: Params,
    name: str,
    q: jax.Array,
    k: jax.Array,
    source: jax.Array,
    *,
    keys: int,
    keys_axis: str,
    config: WanConfig,
    sharding: Sharding,
    impl: AttentionImpl,
) -> jax.Array:
    v = sharding.constrain(_linear(layer, f"{name}.to_v", source), "batch", keys_axis, "heads")
    v = _split_heads(v, keys_axis, config, sharding)
    out = attention(q, k, v, keys=keys, keys_axis=keys_axis, sharding=sharding, impl=impl)
    out = _merge_heads(out, "sequence", sharding)
    return sharding.constrain(_linear(layer, f"{name}.to_out.0", out), "batch", "sequence", None)


def _block(
    layer: Params,
    x: jax.Array,
    context: jax.Array,
    modulation: jax.Array,
    rotary: tuple[jax.Array, jax.Array],
    tokens: int,
    config: WanConfig,
    sharding: Sharding,
    impl: AttentionImpl,
) -> jax.Array:
    dtype = x.dtype
    table = layer["scale_shift_table"]
    shift1, scale1, gate1, shift2, scale2, gate2 = (modulation[:, i : i + 1] + table[i] for i in range(6))

    def residual(x: jax.Array) -> jax.Array:
        return sharding.constrain(x.astype(dtype), "batch", "sequence", None)

    h = residual(_layer_norm(x, config.eps) * (1 + scale1) + shift1)
    q = _rotate(_heads(layer, "attn1", "q", h, "sequence", config, sharding), rotary)
    k = _rotate(_heads(layer, "attn1", "k", h, "sequence", config, sharding), rotary)
    y = _attend(layer, "attn1", q, k, h, keys=tokens, keys_axis="sequence", config=config, sharding=sharding, impl=impl)
    x = residual(x.astype(jnp.float32) + y.astype(jnp.float32) * gate1)

    h = residual(_layer_norm(x, config.eps) * layer["norm2.weight"] + layer["norm2.bias"])
    q = _heads(layer, "attn2", "q", h, "sequence", config, sharding)
    k = _heads(layer, "attn2", "k", context, "text", config, sharding)
    y = _attend(
        layer,
        "attn2",
        q,
        k,
        context,
        keys=context.shape[1],
        keys_axis="text",
        config=config,
        sharding=sharding,
        impl=impl,
    )
    x = residual(x + y)

    h = residual(_layer_norm(x, config.eps) * (1 + scale2) + shift2)
    h = sharding.constrain(_linear(layer, "ffn.net.0.proj", h), "batch", "sequence", "mlp")
    h = sharding.constrain(jax.nn.gelu(h, approximate=True), "batch", "sequence", "mlp")
    y = sharding.constrain(_linear(layer, "ffn.net.2", h), "batch", "sequence", None)
    return residual(x.astype(jnp.float32) + y.astype(jnp.float32) * gate2)


def _exit(
    params: Params,
    x: jax.Array,
    time: jax.Array,
    grid: tuple[int, ...],
    dtype: np.dtype[Any],
    config: WanConfig,
    sharding: Sharding,
) -> jax.Array:
    """Tokens back to latents."""
    shift, scale = jnp.split(time[:, None] + params["scale_shift_table"], 2, axis=1)
    x = (_layer_norm(x, config.eps) * (1 + scale) + shift).astype(x.dtype)
    x = sharding.constrain(_linear(params, "proj_out", x), "batch", "sequence", None)
    x = sharding.constrain(x, "batch", None, None)
    (f, h, w), (pt, ph, pw) = grid, config.patch_size
    x = x[:, : f * h * w].astype(dtype).reshape(-1, f, h, w, pt, ph, pw, config.out_channels)
    x = x.transpose(0, 7, 1, 4, 2, 5, 3, 6).reshape(-1, config.out_channels, f * pt, h * ph, w * pw)
    return sharding.constrain(x, "batch", None, None, None, None)


def from_checkpoint(tensors: Mapping[str, np.ndarray], config: WanConfig, dtype: str = "f32") -> Params:
    """Parameters from the public checkpoint's tensors. Missing, unknown and misshapen ones are named."""
    table = config.table((1, config.in_channels, *config.patch_size), 1, dtype)
    left = dict(tensors)
    params: Params = {}
    for tensor in table["weights"]:
        name, dims = tensor["name"], tuple(dim["size"] for dim in tensor["dims"])
        if name.startswith("blocks."):
            names = [name.replace("blocks.", f"blocks.{layer}.", 1) for layer in range(tensor["repeat"])]
            value = np.stack([_take(left, each, dims, config) for each in names])
        else:
            value = _take(left, name, dims, config)
        params[name] = jnp.asarray(value, jax_dtype(tensor["dtype"]))
    if left:
        raise InvalidRequest(f"{len(left)} tensors that this config does not have: {_some(sorted(left))}")
    return params


def _take(tensors: dict[str, np.ndarray], name: str, dims: tuple[int, ...], config: WanConfig) -> np.ndarray:
    """One tensor of the checkpoint in our layout: [in, out], modulation tables without their leading 1."""
    if name not in tensors:
        raise InvalidRequest(f"the tensor {name!r} is missing")
    value = np.asarray(tensors.pop(name))
    expected: tuple[int, ...] = dims[::-1]
    if name.endswith("scale_shift_table"):
        expected = (1, *dims)
    elif name == "patch_embedding.weight":
        expected = (config.embed, config.in_channels, *config.patch_size)
    if value.shape != expected:
        raise InvalidRequest(f"the tensor {name!r} has the shape {value.shape}; its config wants {expected}")
    if name == "patch_embedding.weight":
        value = value.reshape(config.embed, -1)
    return value[0] if name.endswith("scale_shift_table") else value.T


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


@dataclass(frozen=True)
class WanFile:
    """What a file of `load_npz`'s form holds."""

    config: WanConfig
    params: Params
    latents: jax.Array
    timestep: jax.Array
    text: jax.Array
    output: np.ndarray | None

    def run(self, sharding: Sharding | None = None, attention_impl: AttentionImpl = "exact") -> jax.Array:
        """The transformer's output on the file's inputs."""
        sharding = sharding or Sharding.unsharded()
        table = self.config.table(self.latents.shape, self.text.shape[1], "f32")
        params = jax.device_put(self.params, {k: v.sharding for k, v in parameter_shapes(table, sharding).items()})

        def run(params: Params, latents: jax.Array, timestep: jax.Array, text: jax.Array) -> jax.Array:
            return forward(
                params, latents, timestep, text, config=self.config, sharding=sharding, attention_impl=attention_impl
            )

        inputs = (self.latents, self.timestep, self.text)
        return jax.jit(run)(params, *(jax.device_put(x, sharding.weight(["batch"])) for x in inputs))


def load_npz(path: str | os.PathLike[str]) -> WanFile:
    """Reads a Wan transformer from an npz file: `config` (key=value strings), `param:NAME` for each tensor of the
    checkpoint, `latents`, `timestep`, `text` and, if there, the expected `output`. Every size comes from the file."""
    with np.load(path, allow_pickle=False) as data:
        arrays = {name: data[name] for name in data.files}
    for name, rank in (("config", 1), ("latents", 5), ("timestep", 1), ("text", 3)):
        if name not in arrays:
            raise InvalidRequest(f"{os.fspath(path)}: the array {name!r} is missing")
        if arrays[name].ndim != rank:
            raise InvalidRequest(
                f"{os.fspath(path)}: {name!r} has the shape {arrays[name].shape}; it must have {rank} dimensions"
            )
    config = read_config([str(line) for line in arrays.pop("config")])
    latents, timestep, text = (arrays.pop(name) for name in ("latents", "timestep", "text"))
    output = arrays.pop("output", None)
    prefix = "param:"
    unknown = sorted(name for name in arrays if not name.startswith(prefix))
    if unknown:
        raise InvalidRequest(f"{os.fspath(path)}: arrays of unknown meaning: {_some(unknown)}")
    _check_inputs(config, latents, timestep, text)
    params = from_checkpoint({name.removeprefix(prefix): value for name, value in arrays.items()}, config)
    return WanFile(
        config,
        params,
        jnp.asarray(latents, jnp.float32),
        jnp.asarray(timestep, jnp.float32),
        jnp.asarray(text, jnp.float32),
        output,
    )


def _check_inputs(config: WanConfig, latents: np.ndarray, timestep: np.ndarray, text: np.ndarray) -> None:
    if latents.shape[1] != config.in_channels:
        raise InvalidRequest(f"latents have {latents.shape[1]} channels; in_channels is {config.in_channels}")
    if any(size < patch or size % patch for size, patch in zip(latents.shape[2:], config.patch_size, strict=True)):
        raise InvalidRequest(f"latents of {latents.shape[2:]} are no multiple of the patch {config.patch_size}")
    if text.shape[1] < 1 or text.shape[2] != config.text_dim:
        raise InvalidRequest(
            f"text has the shape {text.shape}; its last dimension must be text_dim = {config.text_dim}"
        )
    if not latents.shape[0] == timestep.shape[0] == text.shape[0] > 0:
        raise InvalidRequest(
            f"latents, timestep and text have batches of {latents.shape[0]}, {timestep.shape[0]} and {text.shape[0]}"
        )


_FIXED = {"cross_attn_norm": "True", "qk_norm": "rms_norm_across_heads"}


def read_config(lines: list[str]) -> WanConfig:
    """A config from key=value strings. Every size must be there; what this model cannot do is refused."""
    given: dict[str, str] = {}
    for line in lines:
        key, separator, value = line.partition("=")
        if not separator or key in given:
            raise InvalidRequest(f"config: {line!r} is {'there twice' if separator else 'not key=value'}")
        given[key] = value.strip()
    for key, value in _FIXED.items():
        if given.pop(key, value) != value:
            raise InvalidRequest(f"config: {key} must be {value}; this model knows no other")
    config = WanConfig()
    fields = asdict(config)
    missing, unknown = sorted(fields.keys() - given.keys()), sorted(given.keys() - fields.keys())
    if missing or unknown:
        raise InvalidRequest(f"config: missing {missing}, unknown {unknown}; keys are {', '.join([*fields, *_FIXED])}")
    values: dict[str, Any] = {}
    for key, value in given.items():
        try:
            if key == "patch_size":
                values[key] = tuple(int(size) for size in value.strip("()[]").split(","))
            else:
                values[key] = type(fields[key])(value)
        except ValueError:
            raise InvalidRequest(
                f"config: {key}={value} is not a {'list of three integers' if key == 'patch_size' else 'number'}"
            ) from None
    config = replace(config, **values)
    if len(config.patch_size) != 3 or not 0 < config.eps < 1:
        raise InvalidRequest(
            "config: patch_size needs three sizes and eps lies between 0 and 1; "
            f"given {config.patch_size}, {config.eps}"
        )
    return config
