"""The logical axes of a program's arguments: their names from flax's metadata or from the caller, and the planner's
table made of them (docs/programs.md)."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from aoizora.errors import InvalidRequest

KINDS = ("weight", "batch", "sequence", "whole")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_MAXIMUM_AXES = 64

Names = tuple["str | None", ...]


@dataclass(frozen=True)
class Argument:
    """One array among a program's arguments."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    names: Names  # of the axes whose rules they have
    given: Names  # as the caller names them


@dataclass(frozen=True)
class Wanted:
    """What the caller says of the axes: kind and unit of each, and which have the rule of another."""

    kinds: Mapping[str, str]
    sizes: Mapping[str, int]
    like: Mapping[str, str]

    def named(self) -> list[str]:
        return [*self.kinds, *self.sizes, *self.like]

    def rule_of(self, name: str) -> str:
        """The axis whose rule a name has."""
        return self.like.get(name, name)


def wanted(kinds: Mapping[str, str] | None, sizes: Mapping[str, int] | None, like: Mapping[str, str] | None) -> Wanted:
    """Checked on their own."""
    result = Wanted(dict(kinds or {}), dict(sizes or {}), dict(like or {}))
    for name in result.named():
        check_name(name, "kinds, sizes and like")
    for name, kind in result.kinds.items():
        if kind not in KINDS:
            raise InvalidRequest(f"kinds[{name!r}] is {kind!r}; allowed are {', '.join(KINDS)}")
    for name, size in result.sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidRequest(f"sizes[{name!r}] is {size!r}; give a whole number above 0")
    for name, other in result.like.items():
        check_name(other, f"like[{name!r}]")
        if other in result.like:
            raise InvalidRequest(f"like[{name!r}] is {other!r}, which is like {result.like[other]!r}: name that one")
        if name in result.kinds or name in result.sizes:
            raise InvalidRequest(f"axis {name!r} is like {other!r}: give kind and size of that one")
    return result


def check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}: {name!r} is no name of a logical axis; allowed are 1 to 64 letters, digits, '_', '-', '.'"
        )


# Names of the arguments' dimensions


def is_array(leaf: Any) -> bool:
    """What can be divided. Python's own numbers stay as they are: a jitted function may have them static."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.generic)


def arguments(tree: Any, axes: Any, rules: Wanted) -> list[Argument]:
    """All arrays of (args, kwargs), in order, with the names of their dimensions.

    axes: None, or the arguments' structure with a tuple (or PartitionSpec) of names for each array; None for one
    without names, or in place of a subtree without any.
    """
    boxes = _flax_names(tree)
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        where = jax.tree_util.keystr(path[1:])
        if not is_array(leaf):
            continue
        names = _given(axes, path, where) if axes is not None else None
        if names is None:
            names = next((boxes[path[:n]] for n in range(len(path), -1, -1) if path[:n] in boxes), None)
        given = _checked(names, leaf, where)
        renamed = tuple(None if name is None else rules.rule_of(name) for name in given)
        twice = [name for name in renamed if name is not None and renamed.count(name) > 1]
        if twice:
            raise InvalidRequest(f"{where} has the axis {twice[0]!r} on two dimensions: {given}")
        found.append(Argument(where, tuple(leaf.shape), dtype_name(leaf.dtype), renamed, given))
    return found


def _checked(names: Any, leaf: Any, where: str) -> Names:
    if names is None:
        return tuple(None for _ in leaf.shape)
    if isinstance(names, PartitionSpec):  # flax' get_partition_spec; whole dimensions at the end may be left out
        names = (*names, *(None,) * (len(leaf.shape) - len(names)))
    for name in names:
        if isinstance(name, (tuple, list)):
            raise InvalidRequest(f"{where}: a dimension has the axes {name!r}; give each dimension one name or None")
        if name is not None:
            check_name(name, where)
    if len(names) != len(leaf.shape):
        raise InvalidRequest(f"{where} has {len(leaf.shape)} dimensions {tuple(leaf.shape)} and the names {names}")
    result: Names = tuple(names)
    return result


def _given(axes: Any, path: tuple[Any, ...], where: str) -> Any:
    """The entry of `axes` at a path; None from where it ends."""
    for key in path:
        if axes is None:
            return None
        axes = _child(axes, key, where)
    if axes is not None and not isinstance(axes, (tuple, list, PartitionSpec)):
        raise InvalidRequest(f"axes for {where} is {axes!r}; give a tuple with a name or None for each dimension")
    return axes


def _child(axes: Any, key: Any, where: str) -> Any:
    try:
        if isinstance(key, jax.tree_util.SequenceKey):
            return axes[key.idx]
        if isinstance(key, jax.tree_util.DictKey):
            return axes[key.key]
        if isinstance(key, jax.tree_util.GetAttrKey):
            return getattr(axes, key.name)
        flat = jax.tree_util.tree_flatten(axes, is_leaf=lambda node: node is not axes)[0]
        return flat[key.key]
    except (KeyError, IndexError, TypeError, AttributeError):
        raise InvalidRequest(
            f"axes has nothing for {where}: give it the structure of the arguments, None where nothing is named"
        ) from None


def _flax_names(tree: Any) -> dict[tuple[Any, ...], Any]:
    """Names that flax's boxes carry, by the box' path. Nothing where nobody has imported flax."""
    meta = sys.modules.get("flax.core.meta")
    variables = sys.modules.get("flax.nnx.variablelib")
    kinds = tuple(
        kind
        for kind in (getattr(meta, "AxisMetadata", None), getattr(variables, "Variable", None))
        if isinstance(kind, type)
    )
    if not kinds:
        return {}
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: isinstance(node, kinds))[0]
    found = {}
    for path, leaf in leaves:
        if isinstance(leaf, kinds):
            names = getattr(leaf, "names", None)
            for attribute in ("sharding_names", "out_sharding", "sharding"):  # nnx, older and newer
                names = names if names is not None else _metadata(leaf, attribute)
            if isinstance(names, (tuple, list)):
                found[path] = tuple(names)
    return found


def _metadata(variable: Any, name: str) -> Any:
    get = getattr(variable, "get_metadata", None)
    return get().get(name) if get is not None else None


def dtype_name(given: Any) -> str:
    """The planner's name of a dtype."""
    if jax.dtypes.issubdtype(given, jax.dtypes.extended):  # keys: four bytes at least
        return "u32"
    dtype = np.dtype(given)
    short = {"bool": "pred", "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
    short |= {"complex64": "c64", "complex128": "c128"}
    name = short.get(dtype.name)
    return name or re.sub("^uint", "u", re.sub("^int", "s", re.sub("^float", "f", dtype.name.replace("_", ""))))


# The table


def table(
    name: str, found: Sequence[Argument], constraints: Iterable[Argument], rules: Wanted, default_kinds: bool = True
) -> dict[str, Any]:
    """The planner's table: axes with size and kind, arguments as weights, constrained values as activations."""
    inside = list(constraints)
    kinds = {name: kind_of(name, found, rules) for name in _order(found, inside)}
    unknown = [name for name in rules.named() if rules.rule_of(name) not in kinds]
    if unknown:
        raise InvalidRequest(
            f"no argument and no constraint names the axis {rules.rule_of(unknown[0])!r}; "
            f"there are {', '.join(kinds) or 'none'}"
        )
    if not any(kind != "whole" for kind in kinds.values()):
        raise InvalidRequest(
            "no argument names an axis that may be divided: give axes=, one tuple of names for each array, or "
            "arguments with flax's partitioning metadata"
        )
    if len(kinds) > _MAXIMUM_AXES:
        raise InvalidRequest(f"{len(kinds)} logical axes; at most {_MAXIMUM_AXES} are planned: give some like another")
    sizes = {name: _size(name, found, inside, rules) for name in kinds}

    def tensor(each: Argument) -> dict[str, Any]:
        dims = [
            {"size": size, "axis": axis or ""} for size, axis in zip(each.shape, each.names, strict=True) if size > 0
        ]
        return {"name": each.path, "dtype": each.dtype, "dims": dims, "repeat": 1}

    return {
        "name": name,
        "axes": [{"name": name, "size": sizes[name], "kind": kind} for name, kind in kinds.items()],
        "weights": [tensor(each) for each in found if 0 not in each.shape],
        "activations": [tensor(each) for each in inside if 0 not in each.shape],
        "attentions": [],
        "contractions": [],
        "layers": 1,
        "tokens": 0,
        "stock_rules": {},
        "block_flops": 0,
        "total_flops": 0,
        "whole_program": True,
    }


def _order(found: Sequence[Argument], inside: Sequence[Argument]) -> list[str]:
    return list(dict.fromkeys(name for each in [*found, *inside] for name in each.names if name is not None))


def kind_of(name: str, found: Sequence[Argument], rules: Wanted) -> str:
    """The kind of an axis: the caller's word, else by its name, else weight where it is on an argument that carries
    neither batch nor sequence, else whole."""
    if name in rules.kinds:
        return rules.kinds[name]
    by_name = _kind_by_name(name)
    if by_name is not None:
        return by_name

    def is_data(each: Argument) -> bool:
        kinds = [rules.kinds.get(other) or _kind_by_name(other) for other in each.names if other is not None]
        return "batch" in kinds or "sequence" in kinds

    return "weight" if any(name in each.names and not is_data(each) for each in found) else "whole"


def _kind_by_name(name: str) -> str | None:
    words = re.split(r"[_.\-]+", name.lower())
    if "batch" in words:
        return "batch"
    if {"sequence", "seq", "length", "tokens", "time"} & set(words):
        return "sequence"
    return "whole" if {"layer", "layers", "stage", "stages", "scan"} & set(words) else None


def _size(name: str, found: Sequence[Argument], inside: Sequence[Argument], rules: Wanted) -> int:
    """What must divide evenly: the caller's word, else the size. Of axes with one rule, and of what is constrained
    inside, the largest common divisor; one name with two sizes on arguments is a mistake."""
    places = [
        (size, given, each.path)
        for each in [*found, *inside]
        for size, axis, given in zip(each.shape, each.names, each.given, strict=True)
        if axis == name and size > 0
    ]
    if name in rules.sizes:
        unit = rules.sizes[name]
        for size, _, path in places:
            if size % unit:
                raise InvalidRequest(f"sizes[{name!r}] is {unit}, but {path} has {size} of it, which is no multiple")
        return unit
    first: dict[str, tuple[int, str]] = {}
    arguments = {each.path for each in found}
    for size, given, path in places:
        one, where = first.setdefault(str(given), (size, path))
        if one != size and path in arguments:
            raise InvalidRequest(
                f"axis {given!r} has the size {one} on {where} and {size} on {path}: rename one, or say with "
                f"sizes={{{name!r}: n}} what must divide evenly, a common divisor of its sizes"
            )
    return math.gcd(*(size for size, _, _ in places)) or 1


def flax_rules(program: Mapping[str, Any], rules: Mapping[str, Sequence[str]]) -> list[tuple[str, Any]]:
    """Flax's logical axis rules: batch and sequence first. Flax gives a name all the mesh axes of a rule or none, so
    what a mesh axis already used leaves of a rule follows as further rules of the name."""
    kinds = {axis["name"]: axis["kind"] for axis in program["axes"]}
    like = program.get("like", {})
    first = [name for name in kinds if kinds[name] in ("batch", "sequence")]
    result: list[tuple[str, Any]] = []
    for axis in [*first, *(name for name in kinds if name not in first)]:
        mesh_axes = tuple(rules.get(axis, ()))
        for name in [axis, *(alias for alias, other in like.items() if other == axis)]:
            result += [(name, part[0] if len(part) == 1 else part) for part in _parts(mesh_axes)] or [(name, None)]
    return result


def _parts(mesh_axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All ordered parts but the empty one, the largest first."""
    count = len(mesh_axes)
    masks = sorted(range((1 << count) - 1, 0, -1), key=lambda mask: -mask.bit_count())
    return [tuple(axis for i, axis in enumerate(mesh_axes) if mask >> (count - 1 - i) & 1) for mask in masks]


def canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))
