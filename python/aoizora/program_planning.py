"""plan_program(): from a JAX function and its arguments to a Plan (docs/programs.md)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from aoizora import _core, logical_axes
from aoizora.compiler import private
from aoizora.errors import InvalidRequest
from aoizora.logical_axes import Argument, Wanted
from aoizora.models.step import STAND_IN
from aoizora.plan_file import Plan
from aoizora.planning import Progress, search

BUILDER = "aoizora.compiler.given:build"
_REST = "rest"


def plan_program(
    function: Callable[..., Any],
    args: Sequence[Any],
    slice: str = "v5e:4x4",
    *,
    kwargs: Mapping[str, Any] | None = None,
    axes: Any = None,
    kinds: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    like: Mapping[str, str] | None = None,
    name: str | None = None,
    reserved_hbm_bytes: int = 0,
    settings: dict[str, Any] | None = None,
    workers: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
    store: str | Path | None = None,
) -> Plan:
    """The best sharding and placement of any program on one slice; needs no TPU.

    function: what `function(*args, **kwargs)` runs, jitted or plain; it is traced once, here. args, kwargs: arrays or
    jax.ShapeDtypeStructs in any pytree. The names of their dimensions come from flax's partitioning metadata or from
    axes: for args one tuple of names (or None) for each array, in the arguments' structure; None where none is named.
    kinds: axis -> "weight", "batch", "sequence" or "whole". sizes: axis -> what must divide evenly, where it is not
    the dimension (16 heads in a dimension of 16 x 64). like: axis -> the axis whose rule it has.
    The other arguments are those of `plan`. Raises InvalidRequest, Infeasible, CompilerFailed, Interrupted.
    """
    if not isinstance(args, (tuple, list)):
        raise InvalidRequest(f"args is a {type(args).__name__}; give the arguments as a tuple: (params, batch)")
    rules = logical_axes.wanted(kinds, sizes, like)
    tree = tuple(args), dict(kwargs or {})
    if axes is not None and not (isinstance(axes, (tuple, list)) and len(axes) == len(args)):
        raise InvalidRequest(f"axes must be a tuple with one entry for each of the {len(args)} arguments, None allowed")
    found = logical_axes.arguments(tree, None if axes is None else (axes, None), rules)
    slice_data = json.loads(_core.slice_json(slice))
    devices = len(_core.slice_devices(slice))
    traced = _Trace(function, tree, found, rules, devices)
    table = logical_axes.table(
        name or str(getattr(function, "__name__", type(function).__name__)), found, traced.constraints, rules
    )
    workload_json = logical_axes.canonical(table)
    program = {
        "workload": table,
        "like": dict(rules.like),
        "digest": hashlib.sha256(traced.bare.encode()).hexdigest(),
    }
    first = [axis["name"] for axis in table["axes"] if axis["kind"] in ("batch", "sequence")]

    def run(make_queue: Any, settings_json: str, memory: Any) -> str:
        with tempfile.TemporaryDirectory(prefix="aoizora-") as folder:
            (Path(folder) / "bare").write_text(traced.bare, encoding="utf-8")
            (Path(folder) / "named").write_text(traced.named, encoding="utf-8")
            request = {"program": program["digest"], "first": first, "folder": folder}
            with make_queue(request, BUILDER) as queue:
                text: str = _core.plan_workload(
                    workload_json, reserved_hbm_bytes, slice, settings_json, queue, progress, memory
                )
                return text

    def complete(data: dict[str, Any]) -> None:
        data["program"].update(like=program["like"], digest=program["digest"])

    return search(
        {"program": program, "reserved_hbm_bytes": reserved_hbm_bytes},
        slice,
        slice_data,
        settings,
        run,
        complete,
        workers=workers,
        use_cache=use_cache,
        store=store,
    )


class _Trace:
    """The program on stand-in mesh axes, one a logical axis, as text: `bare` without and `named` with the names of its
    places; and the values that it constrains."""

    def __init__(
        self, function: Callable[..., Any], tree: Any, found: Sequence[Argument], rules: Wanted, devices: int
    ) -> None:
        names = list(dict.fromkeys([name for each in found for name in each.names if name is not None]))
        names += [name for name in map(rules.rule_of, rules.named()) if name not in names]
        names = list(dict.fromkeys(names))
        mesh = AbstractMesh((*(1 for _ in names), devices), (*(STAND_IN + name for name in names), _REST))
        args, kwargs = _with_shardings(tree, found, mesh)
        jitted: Any = function if hasattr(function, "trace") else jax.jit(function)
        with private.without_places(), jax.sharding.use_abstract_mesh(mesh), _flax_rules(names, rules):
            try:
                traced = jitted.trace(*args, **kwargs)
                lowered = traced.lower(lowering_platforms=("tpu",))
            except Exception as error:
                error.add_note(
                    "aoizora.plan_program was tracing the function for a TPU with its arguments divided by their "
                    "logical axes. It must name no mesh axes of its own: no in_shardings or out_shardings, no "
                    "shard_map, no flax.linen.Partitioned (LogicallyPartitioned, or unboxed parameters and axes=)"
                )
                raise
            self.bare = str(lowered.as_text())
            self.named = str(lowered.as_text(debug_info=True))
        self.constraints = list(_constraints(traced.jaxpr, mesh))


def _with_shardings(tree: Any, found: Sequence[Argument], mesh: AbstractMesh) -> Any:
    left = iter(found)

    def shaped(leaf: Any) -> Any:
        if not logical_axes.is_array(leaf):
            return leaf
        entries = [None if name is None else STAND_IN + name for name in next(left).names]
        sharding = NamedSharding(mesh, PartitionSpec(*entries))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree_util.tree_map(shaped, tree)


@contextlib.contextmanager
def _flax_rules(names: Sequence[str], rules: Wanted) -> Iterator[None]:
    """Each logical axis on its stand-in, for constraints by logical names, where flax is in use."""
    pairs = [(name, STAND_IN + rules.rule_of(name)) for name in dict.fromkeys([*names, *rules.like])]
    modules = (sys.modules.get(name) for name in ("flax.core.spmd", "flax.linen.spmd"))  # newer and older
    found = (getattr(module, "logical_axis_rules", None) for module in modules)
    under = next((rules_context for rules_context in found if rules_context is not None), None)
    with under(pairs) if under is not None else contextlib.nullcontext():
        yield


def _constraints(jaxpr: Any, mesh: AbstractMesh) -> Iterator[Argument]:
    """The values that a program constrains by logical axes, each shape and sharding once."""
    seen: set[Any] = set()
    pending = [jaxpr]
    visited: set[int] = set()
    while pending:
        inner = pending.pop()
        inner = getattr(inner, "jaxpr", inner)
        if id(inner) in visited:
            continue
        visited.add(id(inner))
        for equation in inner.eqns:
            if equation.primitive.name == "shard_map":
                raise InvalidRequest(
                    "the function has a shard_map, which names mesh axes of its own: what is in it cannot be planned. "
                    "Write it with logical constraints, or rank its device order with aoizora.rank"
                )
            for value in equation.params.values():
                pending += [v for v in (value if isinstance(value, (tuple, list)) else [value]) if _is_jaxpr(v)]
            if equation.primitive.name != "sharding_constraint":
                continue
            aval = equation.outvars[0].aval
            names = _logical(equation.params["sharding"], len(aval.shape), mesh)
            if any(names) and (aval.shape, aval.dtype, names) not in seen:
                seen.add((aval.shape, aval.dtype, names))
                path = f"constraint {len(seen)}"
                yield Argument(path, tuple(aval.shape), logical_axes.dtype_name(aval.dtype), names, names)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _logical(sharding: Any, rank: int, mesh: AbstractMesh) -> tuple[str | None, ...]:
    spec = getattr(sharding, "spec", None)
    if spec is None or tuple(sharding.mesh.axis_names) != tuple(mesh.axis_names):
        raise InvalidRequest(
            f"the function constrains a value to {sharding}, on a mesh of its own: constrain by logical axes "
            "(flax's with_logical_constraint), or leave it to the compiler"
        )
    names: list[str | None] = []
    for entry in spec:
        if entry is PartitionSpec.UNCONSTRAINED:
            entry = None
        parts = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        if len(parts) > 1 or any(not str(part).startswith(STAND_IN) for part in parts):
            raise InvalidRequest(f"a constraint puts {entry!r} on one dimension; give each dimension one logical axis")
        names.append(str(parts[0]).removeprefix(STAND_IN) if parts else None)
    return (*names, *(None,) * (rank - len(names)))
