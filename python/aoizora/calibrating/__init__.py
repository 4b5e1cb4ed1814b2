"""A slice's numbers from microbenchmarks on the devices that are here (docs/measure.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aoizora import _core
from aoizora.calibrating.cases import COLLECTIVES, KERNELS, Case, collective_cases, kernel_cases
from aoizora.calibrating.fitting import Change, Fitted, Kept, fit
from aoizora.errors import InvalidRequest
from aoizora.planning import Progress
from aoizora.serving import devices as here
from aoizora.serving.request import STANDARD_SHAPES, tell

if TYPE_CHECKING:
    import jax

__all__ = ["COLLECTIVES", "KERNELS", "SIZES_BYTES", "Calibration", "Case", "Change", "Fitted", "Kept", "calibrate"]

SIZES_BYTES = (64_000, 1_000_000, 8_000_000)
_LARGEST_BYTES = 2**30


class Calibration(NamedTuple):
    """What was measured and what follows from it."""

    slice: str
    devices: str
    cases: list[Case]
    seconds: list[float]
    fitted: Fitted

    @property
    def off(self) -> np.ndarray:
        """How far each prediction is from what was measured, relative to that."""
        return np.asarray(self.fitted.predicted_seconds / np.asarray(self.seconds) - 1)

    @property
    def off_by_kind(self) -> dict[str, float]:
        """Root mean square of each kind's."""
        kinds = [case.kind for case in self.cases]
        of = {kind: [o for o, each in zip(self.off, kinds, strict=True) if each == kind] for kind in kinds}
        return {kind: float(np.sqrt(np.mean(np.square(values)))) for kind, values in of.items()}

    def descriptor(self) -> str:
        """For `aoizora plan --slice`."""
        return json.dumps(self.fitted.descriptor, indent=1) + "\n"

    def dumps(self) -> str:
        """The report."""
        microbenchmarks = [
            {**case._asdict(), "measured_seconds": measured, "predicted_seconds": float(predicted)}
            for case, measured, predicted in zip(self.cases, self.seconds, self.fitted.predicted_seconds, strict=True)
        ]
        head = {"format": "aoizora calibration", "version": 1, "slice": self.slice, "devices": self.devices}
        result = {
            **head,
            "fitted": [change._asdict() for change in self.fitted.changes],
            "kept": [kept._asdict() for kept in self.fitted.kept],
            "relative_rms_off": self.off_by_kind,
            "microbenchmarks": microbenchmarks,
            "descriptor": self.fitted.descriptor,
        }
        return json.dumps(result, indent=1) + "\n"


def calibrate(
    slice: str | None = None,
    *,
    kinds: Sequence[str] = (*COLLECTIVES, *KERNELS),
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    repeats: int = 5,
    warm_up: int = 2,
    seconds: float = 0.03,
    devices: Sequence[jax.Device] | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Runs the microbenchmarks and fits the slice's numbers to their times.

    With several processes every one must call it alike; all get the same result. slice: a name or a descriptor, whose
    numbers stay where nothing was measured; by default what the devices are.
    """
    _check(kinds, sizes_bytes, repeats, warm_up, seconds)
    import jax

    from aoizora.calibrating.timing import Effort, Meeting, seconds_of

    present = list(jax.devices() if devices is None else devices)
    name = slice_here(present) if slice is None else slice
    base = json.loads(_core.slice_json(name))
    ordered = in_slice_order(present, name)
    on_tpu = present[0].platform == "tpu"
    collectives = [kind for kind in kinds if kind in COLLECTIVES]
    cases = collective_cases(base, collectives, sizes_bytes) + kernel_cases(kinds, on_tpu)
    if not cases:
        raise InvalidRequest(
            f"none of {', '.join(kinds)} can be measured on {len(present)} x {present[0].device_kind}: collectives "
            "need two chips, the attention kernel a TPU"
        )
    meeting, effort = Meeting(ordered), Effort(repeats, warm_up, seconds)
    started = time.monotonic()
    measured = []
    for number, case in enumerate(cases, 1):
        measured.append(seconds_of(case, ordered, meeting, effort))
        if progress is not None:
            elapsed = time.monotonic() - started
            progress("calibrate", number, len(cases), elapsed, elapsed / number * (len(cases) - number), "")
    where = f"{len(present)} x {present[0].device_kind}"
    if jax.process_count() > 1:
        where += f" in {jax.process_count()} processes"
    fitted = fit(cases, measured, base, f"aoizora calibrate on {where}", _unmeasured(kinds, cases, where))
    return Calibration(name, where, cases, measured, fitted)


def _unmeasured(kinds: Sequence[str], cases: Sequence[Case], where: str) -> dict[str, str]:
    """Why what has no microbenchmark has none."""
    measured = {case.kind for case in cases}
    links, kernel = "one chip has no links", f"the kernel needs a TPU; here are {where}"
    reasons = {kind: kernel if kind == "attention" else links for kind in (*COLLECTIVES, *KERNELS)}
    reasons = {kind: why if kind in kinds else "not asked for" for kind, why in reasons.items()}
    if not measured & set(COLLECTIVES):
        reasons["collectives"] = links if set(kinds) & set(COLLECTIVES) else "no collective was asked for"
    return reasons


def _check(kinds: Sequence[str], sizes_bytes: Sequence[int], repeats: int, warm_up: int, seconds: float) -> None:
    known = (*COLLECTIVES, *KERNELS)
    unknown = [kind for kind in kinds if kind not in known]
    if unknown or not kinds:
        given = f"unknown microbenchmark {unknown[0]!r}" if unknown else "no microbenchmark named"
        raise InvalidRequest(f"{given}; allowed: {', '.join(known)}")
    if not all(64 <= size <= _LARGEST_BYTES for size in sizes_bytes):
        raise InvalidRequest(f"sizes are {list(sizes_bytes)} bytes; allowed: 64 to {_LARGEST_BYTES}")
    if any(kind in COLLECTIVES for kind in kinds) and (len(sizes_bytes) < 2 or max(sizes_bytes) < 4 * min(sizes_bytes)):
        raise InvalidRequest(
            f"sizes are {list(sizes_bytes)} bytes: start-up and rate are told apart by two sizes or more, the largest "
            "at least four times the smallest"
        )
    if not (1 <= repeats <= 1000 and 0 <= warm_up <= 1000 and 0 < seconds <= 60):
        raise InvalidRequest(
            f"repeats {repeats}, warm_up {warm_up}, seconds {seconds:g}; allowed: 1 to 1000, 0 to 1000, above 0 to 60"
        )


def slice_here(devices: Sequence[Any]) -> str:
    """The slice that these devices are, or that CPU devices stand for."""
    if devices[0].platform == "tpu":
        return here.slice_of(devices)
    shape = STANDARD_SHAPES.get(len(devices))
    if shape is None:
        raise InvalidRequest(
            f"{len(devices)} devices are no standard v5e slice ({', '.join(map(str, STANDARD_SHAPES))}); name one"
        )
    tell(f"no slice named: {len(devices)} {devices[0].platform} devices stand for v5e:{shape}")
    return f"v5e:{shape}"


def in_slice_order(devices: Sequence[Any], slice_name: str) -> list[Any]:
    """The devices as the slice numbers its own. By coordinate; those that have none (CPU) stand for the slice's by
    their id, as under a plan: JAX numbers chips with x fastest."""
    places = [(tuple(at), core) for at, core in _core.slice_devices(slice_name)]
    if len(devices) != len(places):
        raise InvalidRequest(
            f"{slice_name} has {len(places)} devices; here are {len(devices)} of {devices[0].device_kind}"
            + here.trial_hint(devices, len(places))
        )
    if all(hasattr(device, "coords") for device in devices):
        found = {
            (
                tuple(int(c) for c in device.coords)[: len(places[0][0])],
                int(getattr(device, "core_on_chip", 0) or 0),
            ): device
            for device in devices
        }
        missing = [place for place in places if place not in found]
        if missing:
            raise InvalidRequest(f"no device is at {missing[0][0]}, core {missing[0][1]} of {slice_name}")
        return [found[place] for place in places]
    by_id = sorted(devices, key=lambda device: int(device.id))
    numbered = sorted(range(len(places)), key=lambda k: (tuple(reversed(places[k][0])), places[k][1]))
    stands_for = dict(zip(numbered, by_id, strict=True))
    return [stands_for[k] for k in range(len(places))]
