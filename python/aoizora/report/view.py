"""What of a plan is drawn: chips, links, their loads, the lanes of one block. Checked: a file may hold anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from aoizora.errors import InvalidRequest
from aoizora.plan_file import DAMAGES, Plan, damage

P = ParamSpec("P")
T = TypeVar("T")

MOST_DEVICES = 65536
DIMENSIONS = "xyzwvu"
COLLECTIVE_NUMBERS = (
    "runs", "bytes", "seconds", "exposed_seconds", "contention_seconds", "effective_bytes_per_second",
)  # fmt: skip
AGAIN = "this plan was written before plans held link loads and schedules (format 2): plan again"


class Link(NamedTuple):
    """One direction of one wire; between cores of a chip where `cores` names them."""

    start: int
    end: int
    dimension: int
    cores: tuple[int, int] | None = None


class Slot(NamedTuple):
    """Something that takes its time in a block; seconds from the block's begin."""

    kind: str
    begin_seconds: float
    end_seconds: float
    collective: int | None = None


class Lane(NamedTuple):
    """What the core, or the links along one dimension, do in a block. Slots of one row do not overlap."""

    name: str
    rows: list[list[Slot]]


def reads_plan(function: Callable[P, T]) -> Callable[P, T]:
    """A damaged plan is a bad request, not a fault of ours."""

    def guarded(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return function(*arguments, **named)
        except DAMAGES as error:
            raise InvalidRequest(damage(error)) from None

    return guarded


def has_schedule(plan: Plan) -> bool:
    return "timeline" in plan.data["best"]["predicted"]["block"] and "links" in plan.data


def whole(value: Any, below: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
        raise ValueError(f"{value!r} is no whole number from 0 to {below - 1}")
    return value


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{value!r} is no number of at least 0")
    return float(value)


def words(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def shape(plan: Plan) -> tuple[list[int], list[bool], int]:
    """Chips a dimension, whether each wraps, cores a chip."""
    described = plan.data["slice"]
    dims = [whole(size, MOST_DEVICES + 1) for size in described["dims"]]
    wraps = [bool(wrap) for wrap in described["wraps"]]
    cores = whole(described["cores_per_chip"], 65)
    if not dims or len(dims) > len(DIMENSIONS) or len(wraps) != len(dims) or min(*dims, cores) < 1:
        raise ValueError(f"a slice of {dims} chips with {cores} cores is none")
    if math.prod(dims) * cores > MOST_DEVICES:
        raise ValueError(f"a slice of more than {MOST_DEVICES} devices")
    return dims, wraps, cores


def chipnumber(coordinates: Iterable[int], dims: list[int]) -> int:
    """Chips are numbered row-major, x slowest."""
    number = 0
    for at, size in zip(coordinates, dims, strict=True):
        number = number * size + whole(at, size)
    return number


def places(plan: Plan) -> list[tuple[int, int]]:
    """Chip and core of each logical rank."""
    dims, _, cores = shape(plan)
    placement = plan.data["best"]["placement"]
    found = [
        (chipnumber(at, dims), whole(core, cores))
        for at, core in zip(placement["coordinates"], placement["cores"], strict=True)
    ]
    if len(set(found)) != len(found) or len(found) != math.prod(plan.mesh_shape.values()):
        raise ValueError("the placement is no bijection of the mesh's ranks")
    return found


def links(plan: Plan) -> list[Link]:
    """The slice's directed links, by the numbers that patterns use. Raises InvalidRequest where the plan has none."""
    if not has_schedule(plan):
        raise InvalidRequest(AGAIN)
    dims, _, cores = shape(plan)
    chips = math.prod(dims)
    found = []
    for entry in plan.data["links"]:
        start, end = whole(entry[0], chips), whole(entry[1], chips)
        if entry[2] == -1:
            found.append(Link(start, end, -1, (whole(entry[3], cores), whole(entry[4], cores))))
        else:
            found.append(Link(start, end, whole(entry[2], len(dims))))
    return found


def pattern_loads(plan: Plan) -> list[dict[int, float]]:
    """Of each pattern: link -> bytes on it over one run, for a byte of payload."""
    count = len(links(plan))
    return [
        {whole(link, count): number(load) for load, members in pattern for link in members}
        for pattern in plan.data["best"]["predicted"]["block"]["patterns"]
    ]


def collective_loads(plan: Plan) -> list[dict[int, float]]:
    """Of each of the block's collectives: link -> bytes on it over all its runs in one block."""
    patterns = pattern_loads(plan)
    found = []
    for c in plan.data["best"]["predicted"]["block"]["collectives"]:
        times = number(c["bytes"]) * number(c["runs"])
        found.append({link: load * times for link, load in patterns[whole(c["pattern"], len(patterns))].items()})
    return found


def block_loads(plan: Plan) -> dict[int, float]:
    """Link -> bytes on it in one block."""
    total: dict[int, float] = {}
    for loads in collective_loads(plan):
        for link, size in loads.items():
            total[link] = total.get(link, 0.0) + size
    return dict(sorted(total.items()))


def collectives(plan: Plan) -> list[dict[str, Any]]:
    """The block's collectives as the plan has them; each is what the pictures and tables need."""
    found = []
    for c in plan.data["best"]["predicted"]["block"]["collectives"]:
        one: dict[str, Any] = {key: words(c[key]) for key in ("kind", "name")}
        one |= {key: number(c[key]) for key in COLLECTIVE_NUMBERS}
        found.append({**one, "pattern": c["pattern"]} if "pattern" in c else one)
    return found


def lanes(plan: Plan) -> list[Lane]:
    """The core's lane, then one for each dimension whose links carry something; between cores of a chip last."""
    all_links, patterns = links(plan), pattern_loads(plan)
    block = plan.data["best"]["predicted"]["block"]
    of_block = collectives(plan)
    core, now = [], 0.0
    for kind, seconds, *waited in block["timeline"]["core"]:
        end = now + number(seconds)
        core.append(Slot(str(kind), now, end, whole(waited[0], len(of_block)) if waited else None))
        now = end
    flights = [
        Slot(str(of_block[whole(c, len(of_block))]["kind"]), number(begin), number(end), c)
        for c, begin, end in block["timeline"]["flights"]
    ]
    along = [{all_links[link].dimension for link in patterns[whole(c["pattern"], len(patterns))]} for c in of_block]
    found = [Lane("core", [core])]
    for dimension in [*range(len(shape(plan)[0])), -1]:
        used = [slot for slot in flights if slot.collective is not None and dimension in along[slot.collective]]
        if used:
            found.append(Lane(dimension_name(dimension), _rows(used)))
    return found


def dimension_name(dimension: int) -> str:
    return "core to core" if dimension < 0 else f"ICI {DIMENSIONS[dimension]}"


def _rows(slots: list[Slot]) -> list[list[Slot]]:
    """Each slot in the first row that is free when it begins."""
    rows: list[list[Slot]] = []
    for slot in sorted(slots, key=lambda s: (s.begin_seconds, s.end_seconds)):
        row = next((row for row in rows if row[-1].end_seconds <= slot.begin_seconds), None)
        if row is None:
            rows.append([slot])
        else:
            row.append(slot)
    return rows
