"""What sockets and JAX collectives over a mesh of namespaces say of the simulation and of the planner's costs.

A mesh of slow links has the shape of a slice and none of its numbers: what can be compared is a ratio of times.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoizora import _core
from judges.agreement import schedule_of, simulated_seconds
from judges.cases import KINDS, Case, Collective, Groups, ring_pairs
from judges.netns.mesh import NamespaceMesh
from judges.netns.run import jax_seconds, socket_seconds
from judges.simgrid_checks import planner_seconds
from judges.table import Table, percent

TOLERANCE = 0.05
# Slow enough that two cores carry all links of sixteen chips at once; the chunks of a ring still have 100 kB and more.
MEGABITS = 20
PAYLOAD_BYTES = 800_000
RING_BYTES = 1_600_000  # of rings of 8 and 16, and of gloo's, which cuts a shard in two
SOCKET_KINDS = [kind for kind in KINDS if kind != "ragged-all-to-all"]
HEADER = ["compared", "real", "sim.", "Ψ", "sim. off", "Ψ off"]


@dataclass(frozen=True)
class Ratio:
    """Two runs whose times are divided; the collectives of a run start together."""

    what: str
    slower: tuple[Collective, ...]
    faster: tuple[Collective, ...]


@dataclass(frozen=True)
class Bed:
    """A mesh and the descriptor of a slice that has its shape and its links' rate, nothing else that takes time."""

    mesh: NamespaceMesh
    path: str

    @property
    def devices(self) -> list[int]:
        """Chips in order: groups in this module are groups of chips."""
        return list(range(len(self.mesh.names)))

    @property
    def slice_json(self) -> dict[str, Any]:
        """As a schedule prints it."""
        nothing = Collective("collective-permute", [[0, 1]], 4)
        slice_json: dict[str, Any] = schedule_of(Case(self.path, self.devices, [nothing]))["slice"]
        return slice_json

    def simulated(self, *together: Collective) -> float:
        """By the library's simulation."""
        if len(together) == 1:
            return simulated_seconds(together[0], self.path, self.devices)
        text = Case(self.path, self.devices, list(together)).text
        timing = json.loads(_core.simulate(text, "", "", self.path, self.devices, 1, "passes"))
        return float(timing["step_seconds"])

    def planned(self, *together: Collective) -> float:
        """By the planner: Ψ of one collective, Q2 of several."""
        if len(together) == 1:
            return planner_seconds(together[0], self.path, self.devices)
        text = Case(self.path, self.devices, list(together)).text
        score = json.loads(_core.score(text, "", "", self.path, self.devices, 1, "passes"))
        return float(score["step_seconds"])


@contextmanager
def bed(dims: tuple[int, int]) -> Iterator[Bed]:
    """A mesh, and its slice as a file."""
    with NamespaceMesh(dims, MEGABITS) as mesh, tempfile.TemporaryDirectory() as folder:
        free = {"alpha_seconds": 0, "rate_fraction": 1, "flow_bytes_per_second": 0}
        hardware = {
            "ici_bytes_per_second": mesh.link_bytes_per_second,
            "hop_seconds": 0,
            "collectives": dict.fromkeys(KINDS, free),
        }
        path = Path(folder) / "slice.json"
        path.write_text(json.dumps({"base": f"v5e:{dims[0]}x{dims[1]}", "hardware": hardware}))
        yield Bed(mesh, str(path))


def tiles(dims: tuple[int, int]) -> Groups:
    """Groups of four on 2x2 neighbours."""
    return _quads(
        dims,
        [[(x, y) for x in (a, a + 1) for y in (b, b + 1)] for a in range(0, dims[0], 2) for b in range(0, dims[1], 2)],
    )


def strided(dims: tuple[int, int]) -> Groups:
    """Groups of four whose chips are half a slice apart along y (and along x where there are four)."""
    far_x, far_y = dims[0] // 2, dims[1] // 2
    return _quads(
        dims, [[(x, y) for x in (a, a + far_x) for y in (b, b + far_y)] for a in range(far_x) for b in range(far_y)]
    )


def _quads(dims: tuple[int, int], places: Sequence[Sequence[tuple[int, int]]]) -> Groups:
    return [[x * dims[1] + y for x, y in group] for group in places]


def kind_ratios(dims: tuple[int, int]) -> list[Ratio]:
    """Strided against compact groups for each kind; what shares links against what has them to itself."""
    far, near = strided(dims), tiles(dims)

    def permute(*pairs: list[int]) -> tuple[Collective]:
        return (Collective("collective-permute", list(pairs), PAYLOAD_BYTES),)

    def over(kind: str, groups: Groups) -> tuple[Collective]:
        payload = PAYLOAD_BYTES // (2 if kind == "collective-broadcast" else 1)
        return (Collective(kind, ring_pairs(groups) if kind == "collective-permute" else groups, payload),)

    gather, exchange = over("all-gather", near), over("all-to-all", near)
    return [
        Ratio("permute, three hops : one", permute([0, 3]), permute([0, 1])),
        Ratio("two permutes on a link : one", permute([0, 2], [1, 3]), permute([0, 2])),
        Ratio("two permutes with a third", permute([0, 2], [1, 3]) + permute([1, 2]), permute([0, 2], [1, 3])),
        *(Ratio(f"{kind}, strided", over(kind, far), over(kind, near)) for kind in SOCKET_KINDS),
        Ratio("one strided group : compact", over("all-reduce", far[:1]), over("all-reduce", near)),
        Ratio("all-gather with a permute", gather + permute([0, 1]), gather),
        Ratio("all-gather with an all-to-all", gather + exchange, gather),
    ]


def ring_orders(dims: tuple[int, int]) -> dict[str, list[int]]:
    """The chips of a whole mesh around a cycle of neighbours, and by rows of every other chip."""
    rows, columns = dims
    around = [(x, y) for x in range(rows) for y in (range(1, columns) if x % 2 == 0 else range(columns - 1, 0, -1))]
    around += [(x, 0) for x in reversed(range(rows))]
    jumping = [
        (x, y) for y in (*range(0, columns, 2), *range(1, columns, 2)) for x in (*range(0, rows, 2), *range(1, rows, 2))
    ]
    return {"good": _quads(dims, [around])[0], "bad": _quads(dims, [jumping])[0]}


def entry_of(collective: Collective, ring: Sequence[int] | None = None) -> dict[str, Any]:
    """A collective as a judge reads it; a prescribed ring is sent round one way."""
    entry: dict[str, Any] = {"kind": collective.kind, "bytes": collective.bytes}
    entry["pairs" if collective.kind == "collective-permute" else "groups"] = collective.groups
    return entry if ring is None else {**entry, "rings": [list(ring)], "directions": 1}


def _row(what: str, measured: float, simulated: float, planned: float) -> list[str]:
    numbers = [f"{value:.3f}" for value in (measured, simulated, planned)]
    return [what, *numbers, percent(simulated / measured - 1, 1), percent(planned / measured - 1, 1)]


def _add(table: Table, what: str, measured: float, simulated: float, planned: float) -> None:
    table.rows.append(_row(what, measured, simulated, planned))
    if abs(simulated / measured - 1) > TOLERANCE:
        table.failures.append(f"{what}: measured {measured:.3f}, simulated {simulated:.3f}")


def sockets(program: Path, dims: tuple[int, int]) -> Table:
    """Raw sockets on one mesh."""
    about = (
        f"A namespace a chip, a veth pair a link, {MEGABITS} Mbit/s a direction, static routes, x first; TCP "
        "(reno). Ratios of two times, each the middle of the three quickest runs. Strided: against compact groups of "
        "four. With: both at once against the first alone, and the planner's Q2 instead of its Ψ. The messages of a "
        "collective are those of docs/simulation.md, expanded by the judge; who shares a link with whom, and how, is "
        "the kernel's doing. A ring in a bad order has no figure of its own in the library: its is that of permutes "
        f"along the ring. At most {100 * TOLERANCE:g} % off allowed."
    )
    table = Table(f"Sockets between namespaces, {dims[0]}x{dims[1]}", about, HEADER)
    ratios = kind_ratios(dims)
    orders = ring_orders(dims)
    ring = Collective("all-reduce", [sorted(orders["good"])], RING_BYTES)
    with bed(dims) as there:
        cases = [[entry_of(c) for c in run] for ratio in ratios for run in (ratio.slower, ratio.faster)]
        cases += [[entry_of(ring, orders[name])] for name in ("bad", "good")]
        seconds = socket_seconds(program, there.mesh, there.slice_json, cases)
        for ratio, slower, faster in zip(ratios, seconds[0::2], seconds[1::2], strict=False):
            simulated = there.simulated(*ratio.slower) / there.simulated(*ratio.faster)
            planned = there.planned(*ratio.slower) / there.planned(*ratio.faster)
            _add(table, ratio.what, slower / faster, simulated, planned)
        bad, good = (
            Collective("collective-permute", ring_pairs([orders[name]]), PAYLOAD_BYTES) for name in ("bad", "good")
        )
        _add(
            table,
            f"ring of {len(ring.groups[0])}, bad : good order",
            seconds[-2] / seconds[-1],
            there.simulated(bad) / there.simulated(good),
            there.planned(bad) / there.planned(good),
        )
    return table


PRIMITIVES = {"psum": "all-reduce", "all_gather": "all-gather", "ppermute": "collective-permute"}


def _jax_job(primitive: str, groups: Groups) -> dict[str, Any]:
    return {"devices": groups, "axes": ["group", "member"], "steps": [[primitive, "member", RING_BYTES // 4]]}


def cube_placements(dims: tuple[int, int] = (2, 4)) -> dict[str, list[int]]:
    """Devices of the ranks of data 2 x context 2 x tensor 2 on 2x4: who gets x, the near and the far digit of y."""
    result = {}
    for order in itertools.permutations(("x", "y far", "y near")):
        devices = []
        for digits in itertools.product((0, 1), repeat=3):
            at = dict(zip(order, digits, strict=True))
            devices.append(at["x"] * dims[1] + 2 * at["y far"] + at["y near"])
        result["d={} c={} t={}".format(*(name.replace(" ", "-") for name in order))] = devices
    return result


# The program of the six placements: what runs along which axis, and how many f32 words.
# Between two processes gloo's all_gather and ppermute are half duplex, its psum is not.
CUBE_STEPS = (("psum", "tensor", 300_000), ("psum", "context", 200_000), ("psum", "data", 100_000))
CUBE_AXES = ("data", "context", "tensor")


def cube_collectives(devices: Sequence[int]) -> list[Collective]:
    """The same program as collectives of the library, on chips."""
    result = []
    for primitive, axis, words in CUBE_STEPS:
        stride = 4 >> CUBE_AXES.index(axis)
        groups = [[devices[rank], devices[rank + stride]] for rank in range(8) if not rank & stride]
        result.append(
            Collective(PRIMITIVES[primitive], ring_pairs(groups) if primitive == "ppermute" else groups, 4 * words)
        )
    return result


def jax_collectives(program: Path) -> list[Table]:
    """Real JAX on 2x4: eight processes, gloo."""
    dims = (2, 4)
    about = (
        "Eight JAX processes, one a namespace, jitted shard_map, gloo on CPU: its psum and all_gather run one ring in "
        f"mesh order. Ratios of two times, each the middle of the three quickest runs, strided against compact groups "
        f"of four. At most {100 * TOLERANCE:g} % off allowed."
    )
    ratios = Table("JAX collectives between namespaces, 2x4", about, HEADER)
    placements = cube_placements(dims)
    orders = ring_orders(dims)
    jobs = [_jax_job(primitive, groups) for primitive in PRIMITIVES for groups in (strided(dims), tiles(dims))]
    jobs += [_jax_job("psum", [orders[name]]) for name in ("bad", "good")]
    for devices in placements.values():
        shaped = [[devices[4 * a + 2 * b : 4 * a + 2 * b + 2] for b in (0, 1)] for a in (0, 1)]
        jobs.append({"devices": shaped, "axes": list(CUBE_AXES), "steps": [list(step) for step in CUBE_STEPS]})
    with bed(dims) as there:
        seconds = jax_seconds(there.mesh, jobs)
        for (primitive, kind), far, near in zip(PRIMITIVES.items(), seconds[0:6:2], seconds[1:6:2], strict=True):
            groups = [strided(dims), tiles(dims)]
            if kind == "collective-permute":
                groups = [ring_pairs(each) for each in groups]
            slower, faster = (Collective(kind, each, PAYLOAD_BYTES) for each in groups)
            _add(
                ratios,
                f"{primitive}, strided",
                far / near,
                there.simulated(slower) / there.simulated(faster),
                there.planned(slower) / there.planned(faster),
            )
        bad, good = (
            Collective("collective-permute", ring_pairs([orders[name]]), PAYLOAD_BYTES) for name in ("bad", "good")
        )
        _add(
            ratios,
            "psum of 8, bad : good ring",
            seconds[6] / seconds[7],
            there.simulated(bad) / there.simulated(good),
            there.planned(bad) / there.planned(good),
        )
        return [ratios, _cube(program, there, placements, seconds[8:])]


def _cube(program: Path, there: Bed, placements: dict[str, list[int]], jax_times: Sequence[float]) -> Table:
    steps = ", ".join(f"{primitive} of {4 * words / 1e6:g} MB over {axis}" for primitive, axis, words in CUBE_STEPS)
    about = (
        f"data 2 x context 2 x tensor 2 on 2x4: {steps}, one after the other; total seconds of communication. Named is "
        "which digit of the mesh each axis got (x; y near: neighbours; y far: two links apart). Sockets: the three "
        "collectives timed apart and added. Seconds of the library are at the links' payload rate."
    )
    table = Table("Six placements of 2x2x2", about, ["placement", "JAX", "sockets", "simulated", "Ψ", "sim. off"])
    collectives = {name: cube_collectives(devices) for name, devices in placements.items()}
    cases = [[entry_of(each)] for name in placements for each in collectives[name]]
    apart = socket_seconds(program, there.mesh, there.slice_json, cases)
    judged, ours, planned = [], [], []
    for k, name in enumerate(placements):
        sockets_sum = sum(apart[3 * k : 3 * k + 3])
        simulated = sum(there.simulated(each) for each in collectives[name])
        psi = sum(there.planned(each) for each in collectives[name])
        judged.append(jax_times[k])
        ours.append(simulated)
        planned.append(psi)
        numbers = [f"{value:.3f}" for value in (jax_times[k], sockets_sum, simulated, psi)]
        table.rows.append([name, *numbers, percent(simulated / jax_times[k] - 1, 1)])
    names = list(placements)
    for who, figures in (("simulation", ours), ("planner", planned)):
        told = [
            (a, b)
            for a, b in itertools.permutations(range(len(judged)), 2)
            if figures[a] > figures[b] * (1 + TOLERANCE)
        ]
        wrong = [f"{names[a]} and {names[b]}" for a, b in told if judged[a] <= judged[b]]
        table.notes.append(
            f"The {who} holds {len(told)} of {len(judged) * (len(judged) - 1) // 2} pairs for more than "
            f"{100 * TOLERANCE:g} % apart; JAX orders {len(told) - len(wrong)} of them alike."
        )
        table.failures.extend(f"{who}: {pair} stand the other way round" for pair in wrong)
    return table
