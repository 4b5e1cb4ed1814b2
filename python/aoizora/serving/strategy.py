"""A plan on the devices of this process: what a decorated call runs under."""

from __future__ import annotations

import contextvars
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aoizora import cache
from aoizora.plan_file import Plan

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding

    from aoizora.models.sharding import Sharding

current: contextvars.ContextVar[Strategy | None] = contextvars.ContextVar("aoizora_strategy", default=None)


class Strategy:
    """A plan and its mesh. `legacy_mesh`: the call's own code enters meshes by `with mesh:`, as MaxDiffusion does; JAX
    does not allow that inside jax.set_mesh."""

    def __init__(self, plan: Plan, mesh: Mesh, legacy_mesh: bool = False) -> None:
        self.plan = plan
        self.mesh = mesh
        self.legacy_mesh = legacy_mesh
        self.axis_rules: list[tuple[str, Any]]
        if legacy_mesh:
            from aoizora.integrations import maxdiffusion

            self.axis_rules = maxdiffusion.flax_rules(plan)
        else:
            self.axis_rules = [(axis, mesh_axes or None) for axis, mesh_axes in plan.axis_rules.items()]

    @property
    def model_sharding(self) -> Sharding:
        """The rules as aoizora.models takes them."""
        from aoizora.models.sharding import Sharding

        return Sharding(self.mesh, self.plan.candidate)

    @property
    def compiler_options(self) -> dict[str, str]:
        """What the plan's program must be compiled with: jax.jit(..., compiler_options=...)."""
        return {name: str(value) for name, value in self.plan.data["compiler_options"].items()}

    def parameter_shardings(self) -> dict[str, NamedSharding]:
        """Parameter name of the public checkpoint -> sharding; block parameters have the stacked layer dimension."""
        from jax.sharding import NamedSharding

        return {name: NamedSharding(self.mesh, spec) for name, spec in self.plan.partition_specs().items()}

    def entered(self) -> Entered:
        """The context of one call."""
        return Entered(self)


class Entered:
    """Mesh, axis rules and device order of a strategy for the length of a call; after it all is as before."""

    __slots__ = ("_inner", "_strategy", "_token")

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._inner: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> Strategy:
        strategy = self._strategy
        self._token = current.set(strategy)
        try:
            self._enter(strategy)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return strategy

    def _enter(self, strategy: Strategy) -> None:
        if strategy.legacy_mesh:
            from aoizora.integrations import maxdiffusion

            self._begin(strategy.mesh)
            self._begin(maxdiffusion.device_order(strategy))
        else:
            import jax

            # jax.set_mesh takes effect when called, not when entered.
            self._begin(jax.set_mesh(strategy.mesh))
        linen = sys.modules.get("flax.linen")
        if linen is not None:
            self._begin(linen.logical_axis_rules(strategy.axis_rules))

    def _begin(self, context: AbstractContextManager[Any]) -> None:
        context.__enter__()
        self._inner.append(context)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._inner:
            self._inner.pop().__exit__(None, None, None)
        current.reset(self._token)


def flags_line(options: Mapping[str, Any]) -> str:
    """The line that makes a plan's compiler options active in a process started after it; empty where it needs none."""
    if not options:
        return ""
    import shlex

    flags = " ".join(f"--{name}={value}" for name, value in sorted(options.items()))
    return f"export LIBTPU_INIT_ARGS={shlex.quote(flags)}"


def inactive_flags(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The plan's compiler options that this process was not started with."""
    active: dict[str, str] = {}
    for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        for flag in environment.get(variable, "").split():
            name, _, value = flag.removeprefix("--").partition("=")
            active[name] = value
    return {name: str(value) for name, value in options.items() if active.get(name) != str(value)}


def mismatches(plan: Plan) -> list[str]:
    """What of this process differs from what the plan was made with, one sentence each."""
    said = []
    options = plan.data["compiler_options"]
    missing = inactive_flags(options)
    if missing:
        said.append(
            f"the plan needs compiler flags that are not active in this process: {', '.join(sorted(missing))}. Before "
            f"it starts: {flags_line(options)}; or give jax.jit the strategy's compiler_options"
        )
    made = dict(entry.partition("=")[::2] for entry in plan.data["versions"])
    here = cache.version_of("libtpu")
    if here != "missing" and made.get("libtpu", here) != here:
        said.append(
            f"the plan was made for libtpu {made['libtpu']}, this process has {here}, which may compile it otherwise: "
            "plan again"
        )
    return said
