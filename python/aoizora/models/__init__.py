"""Video diffusion transformers in plain JAX, every parameter and activation with logical axis names."""

from aoizora.models.attention import AttentionImpl
from aoizora.models.sharding import Sharding
from aoizora.models.step import build_step

__all__ = ["AttentionImpl", "Sharding", "build_step"]
