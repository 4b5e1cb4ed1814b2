"""One candidate on one mesh: which mesh axes divide which logical axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from aoizora.errors import InvalidRequest
from aoizora.plan_file import ATTENTION_KINDS

TILE_ROWS = 8
"""Rows of one tile of an array in TPU memory."""

# Where an activation names a mesh axis twice, the first of these keeps it, then the leftmost dimension; as the axis
# rules of flax do, the others go without.
_FIRST = ("batch", "sequence")


class Sharding:
    """The axis rules of a candidate over a mesh; gives a PartitionSpec for a tuple of logical axes."""

    def __init__(self, mesh: Mesh, candidate: Mapping[str, Any]) -> None:
        sizes = {axis["name"]: int(axis["size"]) for axis in candidate["mesh"]}
        if sizes != dict(mesh.shape):
            raise InvalidRequest(f"the candidate's mesh is {sizes}, the mesh given is {dict(mesh.shape)}")
        self.mesh = mesh
        self.attention = str(candidate.get("attention", "gathered"))
        if self.attention not in ATTENTION_KINDS:
            raise InvalidRequest(f"unknown attention {self.attention!r}; allowed: {', '.join(ATTENTION_KINDS)}")
        blocks = candidate.get("blocks", {})
        # Lengths to pad to, where a trace is shared by candidates that divide an axis in different ways.
        self._lengths: dict[str, int] = dict(candidate.get("lengths", {}))
        self.query_block = int(blocks.get("queries", 512))
        self.key_block = int(blocks.get("keys", 512))
        for block in (self.query_block, self.key_block):
            if block < 128 or block % 128:
                raise InvalidRequest(f"a kernel block of {block}; it must be a positive multiple of 128")
        # An axis of size 1 divides nothing, but one that stands in for others is annotated all the same.
        divides = {axis["name"] for axis in candidate["mesh"] if int(axis["size"]) > 1 or axis.get("stand_in")}
        self._rules: dict[str, tuple[str, ...]] = {}
        for axis, mesh_axes in candidate.get("rules", {}).items():
            for name in mesh_axes:
                if name not in sizes:
                    raise InvalidRequest(f"the rule of {axis!r} names {name!r}; the mesh has {', '.join(sizes)}")
            if len(set(mesh_axes)) != len(mesh_axes):
                raise InvalidRequest(f"the rule of {axis!r} names a mesh axis twice: {list(mesh_axes)}")
            self._rules[axis] = tuple(name for name in mesh_axes if name in divides)

    @classmethod
    def unsharded(cls) -> Sharding:
        """Everything on one device."""
        return cls(Mesh(np.array(jax.devices()[:1]), ("data",)), {"mesh": [{"name": "data", "size": 1}], "rules": {}})

    def mesh_axes(self, axis: str | None) -> tuple[str, ...]:
        """The mesh axes, of size above 1, that divide a logical axis, major first."""
        return () if axis is None else self._rules.get(axis, ())

    def factor(self, axis: str | None) -> int:
        """Into how many pieces a logical axis is divided."""
        return math.prod(self.mesh.shape[name] for name in self.mesh_axes(axis))

    def padded(self, length: int, axis: str) -> int:
        """The length an activation's axis gets: pieces of one size, of whole tiles, and the whole a multiple of the
        kernel's key block where it is long enough for one, so that nothing is copied to be padded later."""
        if axis in self._lengths:
            return self._lengths[axis]
        pieces = self.factor(axis) * TILE_ROWS
        unit = math.lcm(pieces, self.key_block) if length > self.key_block else pieces
        return math.ceil(length / unit) * unit

    def spec(self, axes: Sequence[str | None]) -> PartitionSpec:
        """The PartitionSpec of a weight. A mesh axis twice on one tensor is refused."""
        names = [name for axis in axes for name in self.mesh_axes(axis)]
        if len(set(names)) != len(names):
            raise InvalidRequest(f"a tensor with the axes {tuple(axes)} would use a mesh axis twice: {names}")
        return _partition_spec([self.mesh_axes(axis) for axis in axes])

    def activation_spec(self, axes: Sequence[str | None]) -> PartitionSpec:
        """The PartitionSpec of an activation: a mesh axis named twice goes to the batch, the sequence, the leftmost."""
        order = sorted(range(len(axes)), key=lambda i: (axes[i] not in _FIRST, i))
        used: set[str] = set()
        entries: list[tuple[str, ...]] = [()] * len(axes)
        for i in order:
            entries[i] = tuple(name for name in self.mesh_axes(axes[i]) if name not in used)
            used.update(entries[i])
        return _partition_spec(entries)

    def weight(self, axes: Sequence[str | None]) -> NamedSharding:
        return NamedSharding(self.mesh, self.spec(axes))

    def constrain(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """`x` with the sharding of its logical axes, one for each dimension."""
        if len(axes) != x.ndim:
            raise ValueError(f"{len(axes)} logical axes for {x.ndim} dimensions")
        if self.mesh.size == 1:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.activation_spec(axes)))


def _partition_spec(entries: Sequence[tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(None if not names else names[0] if len(names) == 1 else names for names in entries))
