"""mesh_utils_order against jax's own create_device_mesh, on libtpu's devices."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libtpu")

from jax.experimental import mesh_utils, topologies

from aoizora import _core
from aoizora.errors import Infeasible

# 2x6, 6x6 and 2x10 have primes other than two: jax loses the factor 2 of 10.
LINES = ["1x1", "1x2", "2x1", "1x4", "1x8", "8x1"]
SLICES = [*LINES, "2x2", "2x4", "4x2", "2x6", "2x8", "4x4", "2x10", "6x6", "4x8", "8x4", "8x8", "4x16"]


def meshes(count: int) -> Iterator[tuple[int, ...]]:
    """Every mesh of two, three and four axes, sizes of one among them."""
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    for axes in (2, 3, 4):
        for head in itertools.product(divisors, repeat=axes - 1):
            product = 1
            for size in head:
                product *= size
            if count % product == 0:
                yield (*head, count // product)


def theirs(devices: list[Any], mesh: tuple[int, ...], split: bool) -> list[list[int]] | None:
    """None where jax raises: NotImplementedError by its contract, others where it loses a factor."""
    try:
        array = mesh_utils.create_device_mesh(mesh, devices, allow_split_physical_axes=split)
    except NotImplementedError:
        assert not split
        return None
    except (TypeError, ValueError):
        assert split
        return None
    assert array.shape == mesh
    return [list(device.coords[:2]) for device in array.flat]


def ours(name: str, mesh: tuple[int, ...], split: bool) -> list[list[int]] | None:
    try:
        return _core.mesh_utils_order(json.dumps({f"axis{i}": size for i, size in enumerate(mesh)}), name, split)
    except Infeasible:
        return None


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("shape", SLICES)
def test_same_order_as_jax(shape: str, split: bool) -> None:
    name = f"v5e:{shape}"
    devices = list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    answers = 0
    for mesh in meshes(len(devices)):
        expected = theirs(devices, mesh, split)
        assert ours(name, mesh, split) == expected, mesh
        answers += expected is not None
    assert answers > 0


FLAT = ["v6e:2x2", "v6e:2x4", "v6e:4x4", "v6e:4x8"]
DEEP = ["v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4", "v5p:4x4x4"]
TWO_CORES = ["tpu7x:2x2x1", "tpu7x:2x2x2", "tpu7x:2x2x4", "tpu7x:2x4x4", "tpu7x:4x4x4"]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", [*FLAT, *DEEP, *TWO_CORES])
def test_same_order_as_jax_on_other_kinds(name: str, split: bool, tmp_path: Path) -> None:
    """Kinds that are no row of the table yet come as descriptors: kind, shape and cores settle the order."""
    devices = list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    kind, shape = name.split(":")
    dims = [int(size) for size in shape.split("x")]
    cores = 1 + max(device.core_on_chip for device in devices)
    descriptor = {"base": "v5e:1x1", "name": name, "dims": dims, "wraps": [False] * len(dims), "cores_per_chip": cores}
    descriptor["hardware"] = {"device_kind": kind, "core_bytes_per_second": 1e12}
    path = tmp_path / "slice.json"
    path.write_text(json.dumps(descriptor))
    for mesh in meshes(len(devices)):
        try:
            array = mesh_utils.create_device_mesh(mesh, devices, allow_split_physical_axes=split)
            expected = [
                [*device.coords[: len(dims)], device.core_on_chip][: len(dims) + (cores > 1)] for device in array.flat
            ]
        except NotImplementedError:
            expected = None
        assert ours(str(path), mesh, split) == expected, mesh


def test_the_stock_deployment_has_an_order_on_every_planned_slice() -> None:
    for name, chips in (("v5e:2x2", 4), ("v5e:2x4", 8), ("v5e:4x2", 8), ("v5e:4x4", 16)):
        order = _core.mesh_utils_order(json.dumps({"data": 1, "fsdp": 1, "context": chips, "tensor": 1}), name)
        assert sorted(map(tuple, order)) == sorted(tuple(at) for at, _ in _core.slice_devices(name))


def test_2x2x2_on_2x4_has_the_papers_six_placements() -> None:
    found = json.loads(_core.distinct_axis_orders('{"data": 2, "context": 2, "tensor": 2}', "v5e:2x4"))
    assert (found["axis_orders"], found["truncated"], len(found["placements"])) == (6, False, 6)
    devices = sorted(at for at, _ in _core.slice_devices("v5e:2x4"))
    assert all(sorted(placement["coordinates"]) == devices for placement in found["placements"])
    fewer = json.loads(_core.distinct_axis_orders('{"data": 2, "context": 2, "tensor": 2}', "v5e:2x4", ["tensor"]))
    assert len(fewer["placements"]) == 3
