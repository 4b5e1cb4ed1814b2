"""Serving with a plan: a configuration, a decorator, and what the decorated call runs under."""

from aoizora.serving.decorator import active_strategy, apply_strategy_to_config, auto_shard
from aoizora.serving.request import Config, Request, build_config

__all__ = ["Config", "Request", "active_strategy", "apply_strategy_to_config", "auto_shard", "build_config"]
