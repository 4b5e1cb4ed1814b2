"""Generation with our own Wan under a plan: the denoising loop and the loading of a public checkpoint into shards."""

from aoizora.generate.checkpoint import load_checkpoint, save_random_checkpoint
from aoizora.generate.denoise import Sampling, denoise, euler_sigmas

__all__ = ["Sampling", "denoise", "euler_sigmas", "load_checkpoint", "save_random_checkpoint"]
