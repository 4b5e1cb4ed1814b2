"""The denoising loop of a flow-matching video transformer: Euler steps, classifier-free guidance."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from aoizora.errors import InvalidRequest
from aoizora.models import wan
from aoizora.models.attention import AttentionImpl
from aoizora.models.sharding import Sharding
from aoizora.planning import Progress

TIMESTEPS = 1000
"""Length of the training's schedule: a noise level sigma is the model's timestep 1000 sigma."""


class Sampling(NamedTuple):
    """How a video is sampled. `shift` moves the steps towards the noise (3 for 480p, 5 for 720p); `guidance` 1 is none
    and needs no negative text."""

    steps: int = 50
    shift: float = 3.0
    guidance: float = 5.0


def euler_sigmas(steps: int, shift: float) -> np.ndarray:
    """Noise levels from 1 to 0, one more than steps: sigma = shift s / (1 + (shift - 1) s) over even s."""
    if steps < 1 or not shift > 0:
        raise InvalidRequest(f"steps is {steps} and shift {shift}; both must be above 0")
    even = np.linspace(1.0, 0.0, steps + 1)
    return np.asarray(shift * even / (1 + (shift - 1) * even))


def denoise(
    params: wan.Params,
    noise: jax.Array,
    text: jax.Array,
    negative_text: jax.Array | None = None,
    *,
    config: wan.WanConfig,
    sharding: Sharding,
    sampling: Sampling | None = None,
    attention_impl: AttentionImpl = "tpu",
    compiler_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> jax.Array:
    """Latents of the videos from noise [videos, channels, frames, height, width] and text [videos, length, text_dim].

    With guidance the model sees both texts in one batch of 2 x videos, which a plan with CFG divides over data:
    v = v_negative + guidance (v_text - v_negative). Each step goes x + (sigma' - sigma) v.
    """
    sampling = sampling or Sampling()
    sigmas = euler_sigmas(sampling.steps, sampling.shift)
    guided = sampling.guidance != 1
    if guided and negative_text is None:
        raise InvalidRequest(f"guidance {sampling.guidance:g} needs a negative text; guidance 1 needs none")
    texts = jnp.concatenate([text, negative_text]) if guided and negative_text is not None else text
    videos = noise.shape[0]
    if text.shape[0] != videos or (guided and texts.shape[0] != 2 * videos):
        raise InvalidRequest(f"{videos} videos of noise, {text.shape[0]} texts: one text, and one negative, for each")
    batch = texts.shape[0]
    if batch % sharding.factor("batch"):
        raise InvalidRequest(f"a model batch of {batch} does not divide {sharding.factor('batch')} ways, as planned")

    def step(params: wan.Params, latents: jax.Array, texts: jax.Array, sigma: jax.Array, next: jax.Array) -> jax.Array:
        doubled = jnp.concatenate([latents, latents]) if guided else latents
        timestep = jnp.full((batch,), sigma * TIMESTEPS, jnp.float32)
        velocity = wan.forward(
            params, doubled, timestep, texts, config=config, sharding=sharding, attention_impl=attention_impl
        )
        if guided:
            wanted, negative = jnp.split(velocity, 2)
            velocity = negative + sampling.guidance * (wanted - negative)
        return latents + (next - sigma) * velocity

    whole = sharding.weight([])
    compiled = jax.jit(step, donate_argnums=1, out_shardings=whole, compiler_options=dict(compiler_options or {}))
    latents = jax.device_put(jnp.array(noise, jnp.float32, copy=True), whole)
    texts = jax.device_put(texts, sharding.weight(["batch"]))
    started = time.monotonic()
    for number, (sigma, following) in enumerate(itertools.pairwise(sigmas), start=1):
        latents = compiled(params, latents, texts, _scalar(sigma), _scalar(following))
        if progress is not None:
            latents.block_until_ready()
            elapsed = time.monotonic() - started
            left = elapsed / number * (sampling.steps - number)
            progress("denoise", number, sampling.steps, elapsed, left, "")
    return latents


def _scalar(value: Any) -> np.float32:
    return np.float32(value)
