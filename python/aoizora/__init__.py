"""AoiZora plans how a video diffusion transformer is sharded over a TPU slice and where each rank sits on it."""

from aoizora.errors import CompilerFailed, Error, Infeasible, Interrupted, InvalidRequest, ParseError
from aoizora.plan_file import Plan
from aoizora.planning import plan
from aoizora.programs import Ranking, rank
from aoizora.serving import Config, active_strategy, apply_strategy_to_config, auto_shard, build_config

__all__ = [
    "CompilerFailed",
    "Config",
    "Error",
    "Infeasible",
    "Interrupted",
    "InvalidRequest",
    "ParseError",
    "Plan",
    "Ranking",
    "active_strategy",
    "apply_strategy_to_config",
    "auto_shard",
    "build_config",
    "plan",
    "rank",
]
