"""auto_shard: a function runs under its request's plan; apply_strategy_to_config: its configuration says so too."""

from __future__ import annotations

import functools
import os
import threading
import types
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from aoizora.errors import InvalidRequest
from aoizora.plan_file import Plan
from aoizora.serving.request import ATTACHED, Config, Request, request_of
from aoizora.serving.strategy import Strategy, current, mismatches

if TYPE_CHECKING:
    from jax import Device

P = ParamSpec("P")
R = TypeVar("R")
Source = str | os.PathLike[str] | Plan


@overload
def auto_shard(plan: Callable[P, R]) -> Callable[P, R]: ...
@overload
def auto_shard(
    plan: Source | None = None, *, devices: Sequence[Device] | None = None, quiet: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def auto_shard(
    plan: Source | Callable[..., Any] | None = None, *, devices: Sequence[Device] | None = None, quiet: bool = False
) -> Any:
    """Decorator: each call runs under the sharding and placement of its request's plan.

    The request is that of the argument made by build_config. Its plan comes from the cache, else it is planned now,
    with progress unless `quiet`; later calls with an equal request use it at once. plan: a plan, or the path of
    plan.json, to use instead. devices: those to use, all that JAX has by default.
    """
    if callable(plan) and not isinstance(plan, (str, os.PathLike, Plan)):
        return auto_shard()(plan)
    strategies = _Strategies(plan, devices, quiet)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        import inspect

        if inspect.isasyncgenfunction(function):
            raise InvalidRequest(f"auto_shard cannot decorate the async generator {function.__name__!r}")

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await _awaited(function(*args, **kwargs), strategies.of(args, kwargs))

        def stepped(*args: Any, **kwargs: Any) -> Any:
            return (yield from _stepped(function(*args, **kwargs), strategies.of(args, kwargs)))

        def called(*args: Any, **kwargs: Any) -> Any:
            with strategies.of(args, kwargs).entered():
                return function(*args, **kwargs)

        run = called
        if inspect.iscoroutinefunction(function):
            run = awaited
        elif inspect.isgeneratorfunction(function):
            run = stepped
        return functools.wraps(function)(run)

    return decorate


def active_strategy() -> Strategy:
    """The strategy of the decorated call that this code runs in. Raises InvalidRequest outside of one."""
    strategy = current.get()
    if strategy is None:
        raise InvalidRequest("no plan is active here: call this inside a function decorated with @aoizora.auto_shard()")
    return strategy


def apply_strategy_to_config(config: Any) -> None:
    """Writes the active plan into a configuration: into each key of MaxDiffusion's that a plan decides, or into our
    Config. Call it inside the decorated function. Raises InvalidRequest."""
    strategy = active_strategy()
    if isinstance(config, Config):
        _check_same_request(strategy.plan, config.request)
        config.strategy = strategy
        return
    keys = config.get_keys() if hasattr(config, "get_keys") else None
    if not isinstance(keys, dict):
        raise InvalidRequest(
            f"a {type(config).__name__} is no configuration AoiZora knows: give one of aoizora.build_config, or "
            "MaxDiffusion's"
        )
    from aoizora.integrations import maxdiffusion

    attached = keys.get(ATTACHED)
    if isinstance(attached, Request):
        _check_same_request(strategy.plan, attached)
    maxdiffusion.apply(strategy.plan, keys, strategy.mesh.size)


class _Strategies:
    """The strategies one decorator has resolved. Finding one again neither plans nor touches the disk."""

    def __init__(self, source: Source | None, devices: Sequence[Device] | None, quiet: bool) -> None:
        self._source = source
        self._devices = devices
        self._quiet = quiet
        self._found: dict[Any, Strategy] = {}
        self._locks: dict[Any, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Strategy:
        """The strategy of a call."""
        request, legacy = None, False
        for value in (*args, *kwargs.values()):
            request = request_of(value)
            if request is not None:
                legacy = not isinstance(value, Config)
                break
        else:
            if self._source is None:
                raise InvalidRequest(
                    "no argument of the call was made by aoizora.build_config, so the request is not known: pass the "
                    "configuration, or name a plan: auto_shard(plan='plan.json')"
                )
            legacy = any(hasattr(value, "get_keys") for value in (*args, *kwargs.values()))
        key = (request, legacy)
        return self._found.get(key) or self._resolve(key)

    def _resolve(self, key: tuple[Request | None, bool]) -> Strategy:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # whoever comes while another thread plans waits for its plan
            found = self._found.get(key)
            if found is None:
                found = self._found[key] = self._make(*key)
        return found

    def _make(self, request: Request | None, legacy: bool) -> Strategy:
        from aoizora.serving import devices, hosts, resolve

        source = self._source
        if source is not None:
            plan = hosts.shared("given", lambda: resolve.load(source))
            if request is not None:
                _check_same_request(plan, request)
        else:
            assert request is not None
            plan = hosts.shared(repr(request), lambda: self._plan(request))
        for said in mismatches(plan):
            warnings.warn(said, RuntimeWarning, stacklevel=5)
        return Strategy(plan, devices.mesh_of(plan, self._devices), legacy)

    def _plan(self, request: Request) -> Plan:
        from aoizora.report.progress import ProgressLine
        from aoizora.serving import resolve

        progress = ProgressLine(quiet=self._quiet)
        try:
            return resolve.plan_for(request, progress)
        finally:
            progress.close()


# The number of steps only multiplies a plan's time, and what HBM to leave free only restricts the choice.
_FREE = ("steps", "reserved_hbm_bytes")


def _check_same_request(plan: Plan, request: Request) -> None:
    """A plan may serve only the request it was made for: every shape in it is static."""
    made = plan.request
    differs = [
        f"{name} {made.get(name)!r}, the request {value!r}"
        for name, value in request.planned().items()
        if name not in _FREE and made.get(name) != value
    ]
    if differs:
        raise InvalidRequest(f"the plan is for another request: it has {'; '.join(differs)}. Plan for this one.")


def _stepped(inner: Any, strategy: Strategy) -> Generator[Any, Any, Any]:
    """A generator or coroutine under a strategy, which is left while others run between two of its steps."""
    step, value = inner.send, None
    while True:
        try:
            with strategy.entered():
                item = step(value)
        except StopIteration as end:
            return end.value
        try:
            value, step = (yield item), inner.send
        except GeneratorExit:
            with strategy.entered():
                inner.close()
            raise
        except BaseException as error:
            value, step = error, inner.throw


_awaited = types.coroutine(_stepped)
