"""Any compiled program as it is: where its ranks are best put. Imports no jax unless a jax object comes in."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aoizora import _core, program_text
from aoizora.errors import InvalidRequest

if TYPE_CHECKING:
    from jax import Device
    from jax.sharding import Mesh

Place = tuple[tuple[int, ...], int]
"""Chip coordinate and core."""


class Ranking:
    """The device orders of one program on one slice. `data` is what the C++ library says of them (docs/programs.md)."""

    def __init__(self, data: dict[str, Any], places: list[Place], now: list[int], best: list[int], given: bool) -> None:
        self.data = data
        self.places = places
        self._now = now
        self._best = best
        self._given = given

    @property
    def assumed(self) -> str:
        """What was assumed of the present order; empty where it was given."""
        if self._given:
            return ""
        return "assumed: rank r is on jax.devices()[r], ordered by id as a TPU host lists them"

    @property
    def mesh_axes(self) -> dict[str, int]:
        """The mesh's axes, as given or as read off the program's groups."""
        return {axis["name"]: axis["size"] for axis in self.data["mesh"]}

    @property
    def seconds(self) -> tuple[float, float]:
        """Predicted seconds of the program, under the present order and under the best."""
        return self.data["now"]["step_seconds"], self.data["chosen"]["step_seconds"]

    @property
    def gain(self) -> float:
        """The part of the present time that the best order saves."""
        now, best = self.seconds
        return 1 - best / now if now > 0 else 0.0

    @property
    def permutation(self) -> list[int]:
        """permutation[r] is which of the present order's devices rank r is best put on:
        numpy.array(devices)[permutation]."""
        where = {device: position for position, device in enumerate(self._now)}
        return [where[device] for device in self._best]

    @property
    def coordinates(self) -> list[list[int]]:
        """Chip coordinate of each rank in the best order, with the core where chips have several."""
        cores = any(core for _, core in self.places)
        return [[*self.places[d][0], *([self.places[d][1]] if cores else [])] for d in self._best]

    def mesh(self, devices: Sequence[Device] | None = None) -> Mesh:
        """The jax Mesh in the best order, on these devices, matched by coordinate (all that JAX has by default)."""
        import jax
        import numpy as np
        from jax.sharding import Mesh

        present = {place_of(d, len(self.places[0][0])): d for d in (jax.devices() if devices is None else devices)}
        wanted = [self.places[device] for device in self._best]
        missing = [place for place in wanted if place not in present]
        if missing or len(present) != len(wanted):
            raise InvalidRequest(
                f"the devices are not the slice {self.data['slice']}: {len(missing)} of its {len(wanted)} places have "
                f"none, {len(present) - len(wanted) + len(missing)} have no place"
            )
        grid = np.empty(len(wanted), dtype=object)
        grid[:] = [present[place] for place in wanted]
        return Mesh(grid.reshape(tuple(self.mesh_axes.values())), tuple(self.mesh_axes))


def rank(
    program: Any,
    slice: str | None = None,
    *,
    mesh: Mesh | Mapping[str, int] | None = None,
    order: Sequence[Any] | None = None,
    rate_scale: float = 1.0,
) -> Ranking:
    """The best device order for a compiled program as it is; it need not be one of ours.

    program: HLO text after optimization, or what jax's `compile()` returned. slice: its name or descriptor; known from
    the devices of a jax Mesh. mesh: the jax Mesh it was compiled under, or its axis sizes by name, major first;
    without it (and where the compiled object does not tell) the axes are read off the program's groups. order: the
    device of each rank at present, as jax devices, coordinates, or positions in jax.devices(); that of a jax Mesh by
    default, else jax.devices() as they come. rate_scale: of every link, as a check of what the answer hangs on.
    Raises InvalidRequest, ParseError.
    """
    text, compiled_mesh = _text_of(program)
    program_text.refuse_plan(text, os.fspath(program) if isinstance(program, os.PathLike) else "")
    mesh = compiled_mesh if mesh is None else mesh
    sizes: Mapping[str, int] | None
    if mesh is None or isinstance(mesh, Mapping):
        sizes = mesh
    else:
        order = list(mesh.devices.flat) if order is None else order
        sizes = dict(mesh.shape)
    if slice is None:
        from aoizora.serving import devices

        found = [d for d in order or () if hasattr(d, "coords")]
        if not found:
            raise InvalidRequest("name the slice the program runs on: rank(program, 'v5e:2x4')")
        slice = devices.slice_of(found)
    described = json.loads(_core.slice_json(slice))
    places: list[Place] = [(tuple(at), core) for at, core in _core.slice_devices(slice)]
    mesh_json = json.dumps([[name, int(size)] for name, size in sizes.items()]) if sizes else ""
    data: dict[str, Any] = json.loads(_core.rank(text, slice, mesh_json, rate_scale))
    data["slice"] = described["name"]
    now = _present_order(order, places)

    def priced(devices: list[int], name: str) -> dict[str, Any]:
        layers = max(1, int(data["layers"]))
        score = json.loads(_core.score(text, "", "", slice, devices, layers, data["rung"], rate_scale))
        return {"devices": devices, "order": name, **score}

    data["now"] = priced(now, "as it is")
    best = priced(data["best"]["devices"], data["best"]["order"])
    data["chosen"] = best if best["step_seconds"] < data["now"]["step_seconds"] else data["now"]
    return Ranking(data, places, now, list(data["chosen"]["devices"]), order is not None)


def place_of(device: Any, dimensions: int) -> Place:
    """Where a jax device is."""
    coordinates = getattr(device, "coords", None)
    if coordinates is None:
        raise InvalidRequest(f"device {device} has no chip coordinates: pass a TPU slice's devices")
    return tuple(int(c) for c in coordinates)[:dimensions], int(getattr(device, "core_on_chip", 0) or 0)


def jax_order(places: Sequence[Place]) -> list[int]:
    """Our device ids in the order of jax.devices() on a TPU host: x fastest, cores of a chip side by side."""
    return sorted(range(len(places)), key=lambda d: (places[d][0][::-1], places[d][1]))


def _present_order(order: Sequence[Any] | None, places: list[Place]) -> list[int]:
    by_position = jax_order(places)
    if order is None:
        return by_position
    ids = {place: number for number, place in enumerate(places)}
    dimensions = len(places[0][0])
    found = []
    for item in order:
        if isinstance(item, int) and not isinstance(item, bool):
            if not 0 <= item < len(places):
                raise InvalidRequest(f"order names device {item}; the slice has 0 to {len(places) - 1}")
            found.append(by_position[item])
            continue
        if isinstance(item, (tuple, list)):
            numbers = [int(c) for c in item]
            place = (tuple(numbers[:dimensions]), numbers[dimensions] if len(numbers) > dimensions else 0)
        else:
            place = place_of(item, dimensions)
        if place not in ids:
            raise InvalidRequest(f"order names {place[0]} core {place[1]}, which the slice does not have")
        found.append(ids[place])
    if sorted(found) != list(range(len(places))):
        raise InvalidRequest(f"order must name each of the slice's {len(places)} devices once; it names {len(found)}")
    return found


def _text_of(program: Any) -> tuple[str, Any]:
    """The program's text and, where a compiled object tells it, its jax Mesh."""
    if isinstance(program, str):
        return program, None
    if isinstance(program, bytes):
        return program_text.decode(program, "the program"), None
    if isinstance(program, os.PathLike):
        return program_text.read(os.fspath(program)), None
    as_text = getattr(program, "as_text", None)
    if as_text is None or not hasattr(program, "input_shardings"):
        raise InvalidRequest(
            f"a {type(program).__name__} is no compiled program: give HLO text, a path, or what compile() returned"
        )
    jax = sys.modules["jax"]
    leaves = jax.tree.leaves((program.input_shardings, program.output_shardings))
    meshes = [leaf.mesh for leaf in leaves if isinstance(leaf, jax.sharding.NamedSharding)]
    mesh = next((m for m in meshes if math.prod(m.shape.values()) > 1), None)
    return as_text(), mesh
