"""The devices that are here: which slice they are, and the mesh of a plan on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoizora import _core
from aoizora.errors import InvalidRequest
from aoizora.plan_file import Plan, same_kind
from aoizora.serving.request import tell

if TYPE_CHECKING:
    from jax import Device
    from jax.sharding import Mesh

# Where the kernel shows the chips of a TPU host.
_DEVICE_FILES = ("accel[0-9]*", "vfio/[0-9]*")


def tpu_may_be_here() -> bool:
    """Whether it is worth asking JAX for a TPU: where none is, asking costs seconds, and imports jax."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and "tpu" not in platforms.split(","):
        return False
    return any(True for pattern in _DEVICE_FILES for _ in Path("/dev").glob(pattern))


def present_slice() -> str | None:
    """The slice this process sees, all hosts together; None where there is no TPU."""
    if not tpu_may_be_here():
        return None
    import jax

    found = jax.devices()
    return slice_of(found) if found[0].platform == "tpu" else None


def slice_of(devices: Sequence[Any]) -> str:
    """The name of the slice that these TPU devices are. Raises InvalidRequest where it has none."""
    kinds = sorted({str(device.device_kind) for device in devices})
    known = [kind for kind in _core.device_kinds() if same_kind(kind, kinds[0])]
    if len(kinds) != 1 or not known:
        raise InvalidRequest(
            f"the devices are {', '.join(kinds)}; slices of {', '.join(_core.device_kinds())} have names, any other is "
            "described by a file: slice='my-slice.json' (docs/topology.md)"
        )
    chips = {tuple(int(c) for c in device.coords) for device in devices}
    extents = [max(axis) - min(axis) + 1 for axis in zip(*chips, strict=True)]
    count = 1
    for extent in extents:
        count *= extent
    if count != len(chips):
        raise InvalidRequest(
            f"the {len(chips)} chips do not fill a rectangle of {'x'.join(map(str, extents))}: name the slice"
        )
    while len(extents) > 2 and extents[-1] == 1:
        extents.pop()
    for dims in (extents, [*extents, 1]):  # a kind of three dimensions keeps its 1
        name = f"{known[0]}:{'x'.join(map(str, dims))}"
        try:
            _core.slice_json(name)
        except InvalidRequest:
            continue
        return name
    raise InvalidRequest(f"the devices are {known[0]}:{'x'.join(map(str, extents))}, which is no slice that has a name")


def trial_hint(devices: Sequence[Any], wanted: int) -> str:
    """How there come to be so many CPU devices, as the end of a message; empty on other devices."""
    on_cpu = devices[0].platform == "cpu"
    return f"; for a trial on CPU export XLA_FLAGS=--xla_force_host_platform_device_count={wanted}" if on_cpu else ""


def mesh_of(plan: Plan, devices: Sequence[Device] | None = None) -> Mesh:
    """The plan's mesh: on a TPU by coordinate; devices that have none (CPU) stand for the slice's, by their id."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    present = list(jax.devices() if devices is None else devices)
    if all(hasattr(device, "coords") for device in present):
        return plan.mesh(present)
    order = plan.data["best"]["placement"]["device_ids"]
    name = plan.data["slice"]["name"]
    if len(present) != len(order):
        raise InvalidRequest(
            f"the plan is for the {len(order)} devices of {name}; here are {len(present)} of {present[0].device_kind}"
            + trial_hint(present, len(order))
        )
    tell(f"{len(present)} {present[0].platform} devices stand for {name}, in the order of their ids")
    present.sort(key=lambda device: device.id)
    grid = np.empty(len(order), dtype=object)
    grid[:] = [present[device] for device in order]
    return Mesh(grid.reshape(tuple(plan.data["mesh"]["axis_sizes"])), tuple(plan.data["mesh"]["axis_names"]))
