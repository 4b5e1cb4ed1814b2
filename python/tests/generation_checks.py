"""Generates a tiny latent under each plan given: `python generation_checks.py CHECKPOINT PLAN...` prints JSON, one
object a plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np
import plans
from safetensors.numpy import load_file

import aoizora
from aoizora.generate import Sampling, denoise, load_checkpoint
from aoizora.models import Sharding, wan

SAMPLING = Sampling(steps=3, shift=3.0, guidance=5.0)


def main(checkpoint: str, *paths: str) -> None:
    random = np.random.default_rng(1)
    noise = random.standard_normal((1, *plans.LATENTS)).astype(np.float32)
    text, negative = random.standard_normal((2, 1, plans.TEXT_LENGTH, plans.TINY.text_dim)).astype(np.float32)
    inputs = noise, text, negative
    stored: dict[str, np.ndarray] = {}
    for name in sorted(json.loads(Path(checkpoint, INDEX).read_text())["weight_map"].values()):
        stored |= load_file(f"{checkpoint}/{name}")
    whole = wan.from_checkpoint(stored, plans.TINY)
    options = {"config": plans.TINY, "sampling": SAMPLING, "attention_impl": "exact"}
    alone = np.asarray(denoise(whole, *inputs, sharding=Sharding.unsharded(), **options))

    results = []
    for path in paths:
        count = len(aoizora.Plan.load(path).data["best"]["placement"]["device_ids"])

        @aoizora.auto_shard(plan=path, devices=jax.devices()[:count])
        def generate() -> tuple[wan.Params, jax.Array]:
            strategy = aoizora.active_strategy()
            sharding = strategy.model_sharding
            config, params = load_checkpoint(checkpoint, sharding, dtype="f32")
            assert config == plans.TINY
            planned = strategy.parameter_shardings()
            for name, value in params.items():
                assert value.sharding.is_equivalent_to(planned[name], value.ndim), name
            return params, denoise(params, *inputs, sharding=sharding, **options)

        params, latents = generate()
        held: dict[int, int] = {}
        for value in params.values():
            for shard in value.addressable_shards:
                held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
        results.append(
            {
                "weights_equal": all(np.array_equal(np.asarray(params[name]), whole[name]) for name in whole),
                "held": max(held.values()),
                "whole": sum(value.nbytes for value in whole.values()),
                "devices": len(held),
                "difference": float(np.abs(np.asarray(latents) - alone).max()),
                "largest": float(np.abs(alone).max()),
                "moved": float(np.abs(alone - noise).max()),
            }
        )
    print(json.dumps(results))


INDEX = "diffusion_pytorch_model.safetensors.index.json"

if __name__ == "__main__":
    main(*sys.argv[1:])
