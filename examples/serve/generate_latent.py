"""Generates a video latent with AoiZora's own Wan, sharded by a plan: no other package's model.

    pip install 'aoizora[serve]'    # in a checkout: pip install '.[serve]'
    aoizora plan --model wan2.1-1.3b --slice v5e:2x4 --out plan.json
    XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu python generate_latent.py plan.json

On a TPU slice leave the environment as it is and give --checkpoint, a folder of the public checkpoint
(Wan-AI/Wan2.1-T2V-14B-Diffusers). Without one a tiny transformer with random weights shows the way on any machine.
The text encoder and the VAE are not AoiZora's: --text names an npz with `text` and `negative`, [1, length, text_dim].
"""

from __future__ import annotations

import argparse
import json
import tempfile

import jax
import numpy as np

import aoizora
from aoizora import _core
from aoizora.generate import Sampling, denoise, load_checkpoint, save_random_checkpoint
from aoizora.models import wan
from aoizora.report.progress import ProgressLine

TINY = wan.WanConfig(num_attention_heads=16, attention_head_dim=12, ffn_dim=64, num_layers=2, text_dim=32, freq_dim=16)
TINY_LATENTS, TINY_TEXT = (1, 16, 3, 10, 6), 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", help="plan.json")
    parser.add_argument("--checkpoint", default="", help="a folder with config.json and safetensors")
    parser.add_argument("--text", default="", help="npz with text embeddings; random ones without")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", default="latent.npy")
    options = parser.parse_args()

    @aoizora.auto_shard(plan=options.plan)
    def generate() -> np.ndarray:
        strategy = aoizora.active_strategy()
        request = strategy.plan.data["request"]
        on_tpu = jax.default_backend() == "tpu"
        progress = ProgressLine()
        with tempfile.TemporaryDirectory() as made:
            if not options.checkpoint:
                save_random_checkpoint(made, TINY)
            config, params = load_checkpoint(
                options.checkpoint or made,
                strategy.model_sharding,
                dtype=request["dtype"] if options.checkpoint else "f32",
                progress=progress,
            )
        random = np.random.default_rng(0)
        shape, length = TINY_LATENTS, TINY_TEXT
        if options.checkpoint:
            shape = (request["videos"], *_core.latent_shape(json.dumps(request))[1:])
            length = json.loads(_core.wan_config(request["model"]))["text_length"]
        text, negative = random.standard_normal((2, shape[0], length, config.text_dim)).astype(np.float32)
        if options.text:
            with np.load(options.text) as given:
                text, negative = given["text"], given["negative"]
        latents = denoise(
            params,
            random.standard_normal(shape).astype(np.float32),
            text,
            negative,
            config=config,
            sharding=strategy.model_sharding,
            sampling=Sampling(steps=options.steps, guidance=5.0 if request["cfg"] else 1.0),
            attention_impl="tpu" if on_tpu else "exact",
            compiler_options=strategy.compiler_options if on_tpu else None,
            progress=progress,
        )
        return np.asarray(latents)

    latents = generate()
    np.save(options.out, latents)
    print(f"latents {latents.shape} written to {options.out}; mean {latents.mean():.4f}, deviation {latents.std():.4f}")


if __name__ == "__main__":
    main()
