"""AoiZora plans how a video diffusion transformer is sharded over a TPU slice and where each rank sits on it."""

from typing import TYPE_CHECKING, Any

from aoizora.errors import CompilerFailed, Error, Infeasible, Interrupted, InvalidRequest, ParseError
from aoizora.plan_file import Plan
from aoizora.planning import plan
from aoizora.serving import Config, active_strategy, apply_strategy_to_config, auto_shard, build_config

if TYPE_CHECKING:
    from aoizora.program_planning import plan_program
    from aoizora.programs import Ranking, rank

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
    "plan_program",
    "rank",
]


def __getattr__(name: str) -> Any:
    # What a hit in the plan cache has no time to import.
    if name in ("Ranking", "rank"):
        from aoizora import programs

        return getattr(programs, name)
    if name == "plan_program":
        from aoizora import program_planning

        return program_planning.plan_program
    raise AttributeError(f"module 'aoizora' has no attribute {name!r}")
