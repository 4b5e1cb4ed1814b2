"""AoiZora plans how a video diffusion transformer is sharded over a TPU slice and where each rank sits on it."""

from aoizora.errors import CompilerFailed, Error, Infeasible, Interrupted, InvalidRequest, ParseError
from aoizora.plan_file import Plan
from aoizora.planning import plan

__all__ = [
    "CompilerFailed",
    "Error",
    "Infeasible",
    "Interrupted",
    "InvalidRequest",
    "ParseError",
    "Plan",
    "plan",
]
