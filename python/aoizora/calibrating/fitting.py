"""The numbers of a descriptor under which the planner's costs come nearest to measured times."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares, nnls  # type: ignore[import-untyped]

from aoizora.calibrating.cases import COLLECTIVES, KERNELS, Case, planned_seconds
from aoizora.errors import InvalidRequest

_FREE = 1e29
"""A rate at which bytes take no time."""
_SAME = 0.1
"""A limit of one flow that is not further than this below a link's rate is noise."""
_NOTHING = 1e-5
"""A number that makes less than this of every time it is part of is none."""
_SHOWS = 0.05
"""Bytes that make less than this of every time do not show how fast they are."""
_ATTENTION = ("attention_product_cycles", "attention_step_cycles", "attention_row_cycles")


class Change(NamedTuple):
    """A number of the descriptor: its name as in docs/topology.md, for a collective with its kind."""

    number: str
    before: float
    value: float


class Kept(NamedTuple):
    number: str
    reason: str


class Fitted(NamedTuple):
    descriptor: dict[str, Any]
    changes: list[Change]
    kept: list[Kept]
    predicted_seconds: np.ndarray
    """By the planner under the descriptor, one a microbenchmark."""


class Design(NamedTuple):
    """Of each collective: T = alpha + hops x hop_seconds + max(link_bytes / rate, flow_bytes / limit of a flow)."""

    hops: np.ndarray
    link_bytes: np.ndarray
    flow_bytes: np.ndarray


class _Links(NamedTuple):
    hop_seconds: float
    alpha_seconds: dict[str, float]
    rate: dict[str, float]
    flow: float
    """Limit of one permute; 0 for none."""


class _Directions(NamedTuple):
    value: float
    told: bool
    """No other explains the times as well."""


def fit(
    cases: Sequence[Case],
    seconds: Sequence[float],
    base: dict[str, Any],
    source: str,
    unmeasured: Mapping[str, str] | None = None,
) -> Fitted:
    """Least squares of the logarithms of predicted and measured times. Raises InvalidRequest where they say nothing."""
    measured = np.asarray(seconds, float)
    if len(cases) == 0 or len(measured) != len(cases):
        raise InvalidRequest(f"{len(cases)} microbenchmarks and {len(measured)} times: there is nothing to fit")
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise InvalidRequest("a microbenchmark took no time, or none that is a number: measure longer (--seconds)")
    made = _Descriptor(base, source, unmeasured or {})
    _fit_links(cases, measured, made)
    _fit_kernels(cases, measured, made)
    if not made.changes:
        raise InvalidRequest(
            "nothing could be fitted: " + "; ".join(f"{kept.number}: {kept.reason}" for kept in made.kept)
        )
    return Fitted(made.data, made.changes, made.kept, planned_seconds(cases, made.data))


class _Descriptor:
    """A descriptor being written, and what was changed in it."""

    def __init__(self, base: dict[str, Any], source: str, unmeasured: Mapping[str, str]) -> None:
        self.unmeasured = unmeasured
        self.data = copy.deepcopy(base)
        self.source = source
        self.changes: list[Change] = []
        self.kept: list[Kept] = []

    def number(self, name: str, kind: str = "") -> float:
        return float(self._place(kind)[name]["value"])

    def set(self, name: str, value: float, kind: str = "") -> None:
        before = self.number(name, kind)
        self._place(kind)[name] = {"value": float(value), "source": self.source}
        self.changes.append(Change(f"{kind} {name}" if kind else name, before, float(value)))

    def keep(self, name: str, reason: str) -> None:
        self.kept.append(Kept(name, reason))

    def keep_unmeasured(self, name: str, kind: str) -> None:
        self.keep(name, self.unmeasured.get(kind, f"no microbenchmark of {kind} was run"))

    def _place(self, kind: str) -> dict[str, Any]:
        hardware: dict[str, Any] = self.data["hardware"]
        place: dict[str, Any] = hardware["collectives"][kind] if kind else hardware
        return place


def probed(base: dict[str, Any], **numbers: float) -> dict[str, Any]:
    """A descriptor in which nothing takes time but what the numbers say, for every kind of collective."""
    result = copy.deepcopy(base)
    hardware = result["hardware"]
    free = {"alpha_seconds": 0.0, "rate_fraction": 1.0, "flow_bytes_per_second": 0.0, "ring_directions": 0.0}
    hardware.update({"ici_bytes_per_second": _FREE, "hop_seconds": 0.0, "hbm_bytes_per_second": _FREE})
    hardware["collectives"] = {kind: dict(free) for kind in hardware["collectives"]}
    for name, value in numbers.items():
        if name in free:
            for rates in hardware["collectives"].values():
                rates[name] = value
        else:
            hardware[name] = value
    return result


def design(cases: Sequence[Case], base: dict[str, Any], ring_directions: float) -> Design:
    """What Ψ makes of collectives, asked one number at a time."""

    def asked(**numbers: float) -> np.ndarray:
        return planned_seconds(cases, probed(base, ring_directions=ring_directions, **numbers))

    return Design(asked(hop_seconds=1.0), asked(ici_bytes_per_second=1.0), asked(flow_bytes_per_second=1.0))


def _solved(columns: np.ndarray, measured: np.ndarray, free: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """Numbers of 0 and above, but for the `free` ones, for which columns x numbers is near the times, and how far it is
    off (root mean square of logarithms). A time twice as long as it should be counts like one half as long; times far
    off, as of a machine that was busy, count less."""
    may_be_below = np.zeros(columns.shape[1], bool) if free is None else free
    relative = columns / measured[:, None]
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0] = 1
    relative = relative / scale

    def off(numbers: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(np.maximum(relative @ numbers, 1e-12)))

    def slope(numbers: np.ndarray) -> np.ndarray:
        return np.asarray(relative / np.maximum(relative @ numbers, 1e-12)[:, None])

    try:
        both = nnls(np.hstack([relative, -relative[:, may_be_below]]), np.ones(len(measured)))[0]
    except RuntimeError:  # no end after many rounds: any start will do
        both = np.full(columns.shape[1] + int(may_be_below.sum()), 1 / columns.shape[1])
    start = both[: columns.shape[1]]
    start[may_be_below] -= both[columns.shape[1] :]
    start = np.where(may_be_below, start, np.maximum(start, 1e-9))
    least = np.where(may_be_below, -np.inf, 0.0)
    exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    found = least_squares(
        off, start, slope, bounds=(least, np.inf), loss="soft_l1", f_scale=0.05, max_nfev=500, **exact
    )
    numbers = np.where(np.abs(relative * found.x).max(axis=0) > _NOTHING, found.x, 0.0)
    return numbers / scale, float(np.sqrt(np.mean(off(numbers) ** 2)))


def _fit_links(cases: Sequence[Case], measured: np.ndarray, made: _Descriptor) -> None:
    at = [k for k, case in enumerate(cases) if case.kind in COLLECTIVES]
    sizes = {kind: {cases[k].size for k in at if cases[k].kind == kind} for kind in COLLECTIVES}
    for kind in COLLECTIVES:
        if not sizes[kind]:
            made.keep_unmeasured(kind, kind)
        elif max(sizes[kind]) < 2 * min(sizes[kind]):
            made.keep(kind, "one size, once payloads are whole tiles: start-up and rate are not told apart")
    kinds = [kind for kind in COLLECTIVES if sizes[kind] and max(sizes[kind]) >= 2 * min(sizes[kind])]
    at = [k for k in at if cases[k].kind in kinds]
    if not kinds:
        for name in ("ici_bytes_per_second", "hop_seconds"):
            made.keep_unmeasured(name, "collectives")
        return
    collectives, times = [cases[k] for k in at], measured[at]
    designs = {directions: design(collectives, made.data, directions) for directions in (0.0, 1.0, 2.0)}
    of = {kind: np.array([case.kind == kind for case in collectives]) for kind in kinds}
    directions = {
        kind: _directions(designs, of[kind], times, made.number("ring_directions", kind))
        for kind in kinds
        if kind != "collective-permute"
    }
    used = _merged(designs, of, directions)
    while kinds:
        links, failed = _solve_links(used, of, kinds, times, made)
        if not failed:
            break
        for kind in failed:
            made.keep(kind, "its times do not grow with the bytes: larger --sizes, or an idle machine")
        kinds = [kind for kind in kinds if kind not in failed]
    if not kinds:
        made.keep("ici_bytes_per_second", "no collective's times grow with the bytes")
        return
    _write_links(links, kinds, directions, made)


def _directions(designs: dict[float, Design], rows: np.ndarray, times: np.ndarray, before: float) -> _Directions:
    """How a kind's rings run: as before, unless another way explains its times clearly better."""
    off = {}
    for directions, d in designs.items():
        columns = np.stack([d.hops[rows], np.ones(rows.sum()), d.link_bytes[rows]], axis=1)
        off[directions] = max(_solved(columns, times[rows], np.array([False, True, False]))[1], 1e-6)
    chosen = before
    for directions in (1.0, 2.0, 0.0):
        if off[directions] < 0.8 * off[chosen]:
            chosen = directions
    return _Directions(chosen, all(off[other] > 1.25 * off[chosen] for other in designs if other != chosen))


def _merged(designs: dict[float, Design], of: dict[str, np.ndarray], directions: dict[str, _Directions]) -> Design:
    merged = Design(*(column.copy() for column in designs[0.0]))
    for kind, chosen in directions.items():
        for column, taken in zip(merged, designs[chosen.value], strict=True):
            column[of[kind]] = taken[of[kind]]
    return merged


def _solve_links(
    used: Design, of: dict[str, np.ndarray], kinds: list[str], times: np.ndarray, made: _Descriptor
) -> tuple[_Links, list[str]]:
    """All kinds together, for hops cost the same in each. Also the kinds whose rate came out as none.

    A start-up below 0, as of buffers that take the first bytes at once, is let be here and 0 in the descriptor: held at
    0 already here it would make the rates too high.
    """
    permutes = of.get("collective-permute", np.zeros(len(times), bool))
    shared = permutes & (used.link_bytes > used.flow_bytes * (1 + 1e-9))
    rows = np.any([of[kind] for kind in kinds], axis=0)

    def solved(limited: np.ndarray) -> tuple[_Links, np.ndarray]:
        """With the times of `limited` rows held for those of a flow's own limit, not of a link."""
        columns = [used.hops, *(of[kind] * 1.0 for kind in kinds)]
        columns += [used.link_bytes * (of[kind] & ~limited) for kind in kinds]
        columns.append(used.flow_bytes * limited)
        table = np.stack(columns, axis=1)[rows]
        there = np.any(table != 0, axis=0)
        fixed = np.zeros(len(times))
        unit = table[:, there] / np.abs(table[:, there]).max(axis=0)
        if np.linalg.matrix_rank(unit, tol=1e-9 * len(unit)) < unit.shape[1]:  # hops are not told from alpha
            there[0] = False
            fixed = used.hops * made.number("hop_seconds")
        numbers = np.zeros(table.shape[1])
        free = np.zeros(table.shape[1], bool)
        free[1 : 1 + len(kinds)] = True
        numbers[there] = _solved(table[:, there], np.maximum(times - fixed, times * 1e-3)[rows], free[there])[0]
        if not there[0]:
            numbers[0] = made.number("hop_seconds")
        n = len(kinds)
        rates = 1 / np.where(numbers[1 + n :] > 0, numbers[1 + n :], np.inf)
        return _Links(
            float(numbers[0]),
            dict(zip(kinds, map(float, numbers[1 : 1 + n]), strict=True)),
            dict(zip(kinds, map(float, rates[:n]), strict=True)),
            float(rates[n]),
        ), there

    plain = np.zeros(len(times), bool)
    links, there = solved(plain)
    if shared.any() and (permutes & ~shared).any() and "collective-permute" in kinds:
        limited, _ = solved(permutes & ~shared)
        # A lone permute is slowed by its own limit where it is below the link's rate, two on a link by the link where
        # twice the limit is above it.
        if 0 < limited.flow < (1 - _SAME) * limited.rate["collective-permute"]:
            links = limited
    failed = [
        kind
        for kind in kinds
        if not 0 < links.rate[kind] < _FREE or (used.link_bytes / links.rate[kind] / times)[of[kind]].max() < _SHOWS
    ]
    if not there[0] and not failed:
        made.keep("hop_seconds", "no two of the microbenchmarks differ in hops alone")
    return links, failed


def _write_links(links: _Links, kinds: list[str], directions: dict[str, _Directions], made: _Descriptor) -> None:
    """The link's rate is that of the kind that gets most out of it; the other kinds' fractions are of that."""
    fastest = max(links.rate[kind] for kind in kinds)
    made.set("ici_bytes_per_second", fastest)
    if not any(kept.number == "hop_seconds" for kept in made.kept):
        made.set("hop_seconds", links.hop_seconds)
    for kind in kinds:
        made.set("alpha_seconds", max(0.0, links.alpha_seconds[kind]), kind)
        made.set("rate_fraction", min(1.0, links.rate[kind] / fastest), kind)
        if kind == "collective-permute":
            _write_flow(links, made)
            continue
        if made.number("flow_bytes_per_second", kind) > 0:
            made.set("flow_bytes_per_second", 0.0, kind)
        chosen = directions[kind]
        if chosen.value != made.number("ring_directions", kind):
            made.set("ring_directions", chosen.value, kind)
        elif not chosen.told:
            made.keep(f"{kind} ring_directions", "another way round explains the times as well")


def _write_flow(links: _Links, made: _Descriptor) -> None:
    name, kind = "flow_bytes_per_second", "collective-permute"
    before = made.number(name, kind)
    if links.flow > 0 or before == 0 or before < links.rate[kind]:
        made.set(name, links.flow, kind)
    else:
        made.keep(f"{kind} {name}", "nothing here is as fast as the limit")


def _fit_kernels(cases: Sequence[Case], measured: np.ndarray, made: _Descriptor) -> None:
    base = probed(made.data)
    for kind in KERNELS:
        at = [k for k, case in enumerate(cases) if case.kind == kind]
        names = ("matmul_efficiency",) if kind == "matmul" else _ATTENTION
        if not at:
            for name in names:
                made.keep_unmeasured(name, kind)
            continue
        of_kind = [cases[k] for k in at]
        if kind == "matmul":
            base["hardware"]["matmul_efficiency"] = 1.0
        slower = float(_solved(planned_seconds(of_kind, base)[:, None], measured[at])[0][0])
        if kind == "attention":
            for name in names:
                made.set(name, made.number(name) * slower)
        elif slower < 1:
            made.keep(
                "matmul_efficiency",
                f"a matmul alone would need {1 / slower:.2f}, more than 1: it runs faster than core_efficiency, "
                f"{made.number('core_efficiency'):g}, which is of whole programs, allows",
            )
        else:
            made.set("matmul_efficiency", 1 / slower)
    made.keep("core_efficiency", "it is of whole programs; microbenchmarks do not see it")
