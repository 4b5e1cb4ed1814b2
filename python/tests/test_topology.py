"""Our slices against libtpu's own: the same names are taken, with the same devices."""

import json
from pathlib import Path

import pytest

pytest.importorskip("libtpu")

import jax
from jax.experimental import topologies

from aoizora import _core
from aoizora.errors import InvalidRequest

NAMES = [f"v5e:{a}x{b}" for a in (*range(1, 9), 10, 12, 14, 15, 16) for b in (*range(1, 9), 10, 12, 14, 15, 16)]


@pytest.mark.parametrize("name", NAMES)
def test_same_names_and_devices_as_libtpu(name: str) -> None:
    try:
        theirs = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except jax.errors.JaxRuntimeError:
        with pytest.raises(InvalidRequest, match="nearest"):
            _core.slice_devices(name)
        return
    ours = [(*coordinates, 0, core) for coordinates, core in _core.slice_devices(name)]
    assert ours == sorted(ours), "ordered by coordinates, then core"
    assert ours == sorted((*device.coords, device.core_on_chip) for device in theirs)


def test_names_beyond_the_documented_16_are_refused() -> None:
    """libtpu lays out larger rectangles too, but there is no such slice to be had."""
    assert len(topologies.get_topology_desc(platform="tpu", topology_name="v5e:16x18").devices) == 288
    with pytest.raises(InvalidRequest, match="v5e:16x16"):
        _core.slice_devices("v5e:16x18")


def test_descriptor_reads_back(tmp_path: Path) -> None:
    text = _core.slice_json("v5e:8x16")
    descriptor = json.loads(text)
    assert descriptor["wraps"] == [False, True]
    assert all(
        number["source"] for number in descriptor["hardware"].values() if isinstance(number, dict) and "value" in number
    )
    path = tmp_path / "slice.json"
    path.write_text(text)
    assert _core.slice_json(str(path)) == text
    descriptor["hardware"]["ici_bytes_per_second"] = 22.5e9
    path.write_text(json.dumps(descriptor))
    changed = json.loads(_core.slice_json(str(path)))
    assert changed["hardware"]["ici_bytes_per_second"] == {"value": 22.5e9, "source": "descriptor"}


def test_route_goes_x_first_and_the_short_way_round() -> None:
    devices = [coordinates for coordinates, _ in _core.slice_devices("v5e:8x16")]
    start, end = devices.index([1, 1]), devices.index([3, 15])
    assert len(_core.slice_route("v5e:8x16", start, end)) == 2 + 2
    assert _core.slice_route("v5e:8x16", start, start) == []
    with pytest.raises(InvalidRequest):
        _core.slice_route("v5e:8x16", 0, 128)
