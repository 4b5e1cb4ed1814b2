"""The best device order of a program as it is: aoizora.rank and `aoizora rank`."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

import aoizora
from aoizora import InvalidRequest, ParseError, _core, programs
from aoizora.cli import main

SLICE = "v5e:2x4"
MESH = {"data": 2, "context": 2, "tensor": 2}


@pytest.fixture(scope="module")
def text(data: Path) -> str:
    with gzip.open(data / "hlo" / "flash_d2c2t2.hlo.txt.gz", "rt") as file:
        return file.read()


def test_from_any_order_the_permutation_leads_to_the_best_and_no_further(text: str) -> None:
    draw = random.Random(1)
    best = aoizora.rank(text, SLICE, mesh=MESH).seconds[1]
    for _ in range(5):
        order = draw.sample(range(8), 8)
        found = aoizora.rank(text, SLICE, mesh=MESH, order=order)
        assert found.seconds[1] == min(best, found.seconds[0])
        after = aoizora.rank(text, SLICE, mesh=MESH, order=[order[i] for i in found.permutation])
        assert after.seconds == (found.seconds[1], found.seconds[1])
        assert after.permutation == list(range(8))
        assert after.gain == 0


def test_every_way_to_write_an_order_means_the_same(text: str) -> None:
    topologies = pytest.importorskip("jax.experimental.topologies")
    pytest.importorskip("libtpu")
    devices = sorted(topologies.get_topology_desc(platform="tpu", topology_name=SLICE).devices, key=lambda d: d.id)
    positions = [3, 1, 0, 2, 7, 5, 4, 6]
    as_devices = [devices[i] for i in positions]
    as_coordinates = [tuple(device.coords[:2]) for device in as_devices]
    first = aoizora.rank(text, SLICE, mesh=MESH, order=positions)
    assert aoizora.rank(text, SLICE, mesh=MESH, order=as_devices).data == first.data
    assert aoizora.rank(text, SLICE, mesh=MESH, order=as_coordinates).data == first.data
    mesh = first.mesh(devices)
    assert dict(mesh.shape) == MESH
    assert [list(device.coords[:2]) for device in mesh.devices.flat] == first.coordinates
    assert list(mesh.devices.flat) == [as_devices[i] for i in first.permutation]
    with pytest.raises(InvalidRequest, match="1 of its 8 places have none"):
        first.mesh(devices[1:])


def test_without_mesh_and_order_it_says_what_it_assumes(text: str) -> None:
    found = aoizora.rank(text, SLICE)
    assert "jax.devices()[r]" in found.assumed
    assert list(found.mesh_axes.values()) == [2, 2, 2]
    assert sorted(found.permutation) == list(range(8))
    assert found.seconds == aoizora.rank(text, SLICE, mesh=MESH, order=range(8)).seconds
    assert aoizora.rank(text, SLICE, mesh=MESH, order=range(8)).assumed == ""


def test_the_default_order_is_that_of_libtpus_ids() -> None:
    topologies = pytest.importorskip("jax.experimental.topologies")
    pytest.importorskip("libtpu")
    for name in ("v5e:2x4", "v5e:4x2", "v5e:4x4"):
        places = [(tuple(at), core) for at, core in _core.slice_devices(name)]
        devices = sorted(topologies.get_topology_desc(platform="tpu", topology_name=name).devices, key=lambda d: d.id)
        assert [places[d] for d in programs.jax_order(places)] == [programs.place_of(d, 2) for d in devices]


def test_a_program_compiled_by_jax_gets_a_mesh_under_which_nothing_is_left_to_gain() -> None:
    """All-reduces over the axis that jax's plain reshape scatters; compiled again under the answer."""
    jax = pytest.importorskip("jax")
    topologies = pytest.importorskip("jax.experimental.topologies")
    pytest.importorskip("libtpu")
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = sorted(topologies.get_topology_desc(platform="tpu", topology_name=SLICE).devices, key=lambda d: d.id)
    scattered = Mesh(np.array(devices)[[0, 7, 1, 6, 2, 5, 3, 4]].reshape(2, 4), ("data", "context"))

    def compiled(mesh: Mesh) -> object:
        def shaped(shape: tuple[int, ...], *axes: str) -> object:
            return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, PartitionSpec(*axes)))

        multiply = jax.jit(lambda x, w: x @ w, out_shardings=NamedSharding(mesh, PartitionSpec("data")))
        traced = multiply.trace(shaped((512, 4096), "data", "context"), shaped((4096, 1024), "context"))
        return traced.lower(lowering_platforms=("tpu",)).compile()

    found = aoizora.rank(compiled(scattered))
    assert found.data["slice"] == SLICE
    assert found.mesh_axes == {"data": 2, "context": 4}
    assert found.assumed == ""
    assert found.gain > 0.05
    again = aoizora.rank(compiled(found.mesh(devices)))
    assert again.gain == 0
    assert again.seconds[0] == pytest.approx(found.seconds[1], rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"order": [0, 1, 2]}, "each of the slice's 8 devices once"),
        ({"order": [0] * 8}, "each of the slice's 8 devices once"),
        ({"order": [9] * 8}, "order names device 9"),
        ({"order": [(5, 5)] * 8}, "does not have"),
        ({"mesh": {"data": 3, "x": 1}}, "mesh data=3 x=1 do not multiply to the 8"),
        ({"slice": "v5e:2x2"}, "8"),
        ({"slice": None}, "name the slice"),
        ({"program": 3}, "no compiled program"),
        ({"program": Path("/nonexistent/module.txt")}, "cannot read"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, arguments: dict, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        aoizora.rank(**{"program": text, "slice": SLICE, "mesh": MESH, **arguments})


def test_text_that_is_no_hlo_is_refused_with_its_place() -> None:
    with pytest.raises(ParseError):
        aoizora.rank("HloModule m\n\nnonsense", SLICE)


def test_the_command_says_what_the_function_says(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "module.txt"
    file.write_text(text)
    order = "0,7,1,6,2,5,3,4"
    command = ["rank", str(file), "--slice", SLICE, "--mesh", "data=2,context=2,tensor=2", "--order", order]
    found = aoizora.rank(text, SLICE, mesh=MESH, order=[int(i) for i in order.split(",")])
    assert main(command) == 0
    said = capsys.readouterr().out
    assert f"best  {found.seconds[1] * 1e3:.3f} ms" in said
    assert f"numpy.array(jax.devices())[{[[0, 7, 1, 6, 2, 5, 3, 4][i] for i in found.permutation]}]" in said
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["permutation"] == found.permutation
    for wrong in (["--mesh", "data"], ["--mesh", "a=2,a=4"], ["--order", "0,x"], ["--slice", "v9:1x1"]):
        assert main([*command, *wrong]) == 2
