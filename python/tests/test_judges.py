"""The judges themselves: that SimGrid and the simulation agree, that a judge notices, that namespaces go away."""

import fcntl
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judges import agreement, cases, netns_checks, simgrid_checks, table
from judges import run as judges_run
from judges.netns import mesh, run

from aoizora import _core

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 0.005


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    try:
        return judges_run.built(ROOT / "build" / "judges")
    except judges_run.Skipped as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def simgrid(programs: dict[str, Path]) -> Path:
    if "simgrid_judge" not in programs:
        pytest.skip("no SimGrid (Debian: libsimgrid-dev)")
    return programs["simgrid_judge"]


def plain_slice(dims: tuple[int, int], rate: float = 1e9, hop_seconds: float = 0.0) -> dict[str, Any]:
    """Every kind at the links' rate, nothing else takes time; written without the library."""
    places = list(itertools.product(*map(range, dims)))
    links = [
        {"kind": "ici", "from_chip": a, "to_chip": b, "from_core": 0, "to_core": 0, "bytes_per_second": rate}
        for a, b in itertools.permutations(range(len(places)), 2)
        if sum(abs(i - j) for i, j in zip(places[a], places[b], strict=True)) == 1
    ]
    free = {"alpha_seconds": 0, "rate_fraction": 1, "flow_bytes_per_second": 0, "ring_directions": 0}
    return {
        "dims": list(dims), "wraps": [False, False], "cores_per_chip": 1, "hop_seconds": hop_seconds,
        "devices": [[*place, 0] for place in places], "links": links,
        "collectives": dict.fromkeys(cases.KINDS, free),
    }  # fmt: skip


def alone(judge: Path, model: str, collective: dict[str, Any], **slice_of: Any) -> float:
    case = {"slice": plain_slice(**slice_of), "collectives": [collective]}
    return float(max(agreement.simgrid_times(judge, [case], model)[0]["end_seconds"]))


@pytest.mark.parametrize("model", ["CM02", "L07"])
def test_simgrid_gives_what_can_be_said_by_hand(simgrid: Path, model: str) -> None:
    shared = {"kind": "collective-permute", "bytes": 1e6, "pairs": [[0, 2], [1, 3]]}
    lone = {"kind": "collective-permute", "bytes": 1e6, "pairs": [[0, 2]]}
    assert alone(simgrid, model, lone, dims=(1, 4)) == pytest.approx(1e-3)
    assert alone(simgrid, model, shared, dims=(1, 4)) == pytest.approx(2e-3)
    assert alone(simgrid, model, lone, dims=(1, 4), hop_seconds=1e-4) == pytest.approx(1.2e-3)
    # A ring of four sent round both ways: 3/4 of the payload over two ports; an all-reduce takes twice that.
    for kind, times in (("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)):
        ring = {"kind": kind, "bytes": 8e6, "groups": [[0, 1, 2, 3]]}
        assert alone(simgrid, model, ring, dims=(2, 2)) == pytest.approx(times * 3e-3)
    # A prescribed ring of four, one way.
    ring = {"kind": "all-gather", "bytes": 8e6, "groups": [[0, 1, 2, 3]], "rings": [[0, 1, 3, 2]], "directions": 1}
    assert alone(simgrid, model, ring, dims=(2, 2)) == pytest.approx(6e-3)


def off(pairs: list[agreement.Compared]) -> float:
    return max(abs(pair.difference) for pair in pairs)


def test_simgrid_and_the_simulation_agree(simgrid: Path, tmp_path: Path) -> None:
    assert off(agreement.compare_programs(simgrid, cases.random_cases(30, 7, tmp_path))) < TOLERANCE


@pytest.mark.slow
def test_simgrid_and_the_simulation_agree_on_many(simgrid: Path, tmp_path: Path) -> None:
    assert off(agreement.compare_programs(simgrid, cases.random_cases(500, 8, tmp_path))) < TOLERANCE


@pytest.mark.parametrize("kind", cases.KINDS)
def test_simgrid_and_the_simulation_agree_on_every_kind(simgrid: Path, tmp_path: Path, kind: str) -> None:
    random_ones = cases.random_cases(6, 9, tmp_path, kinds=[kind], most=1)
    singles = [(case.collectives[0], case.slice, case.devices) for case in random_ones]
    assert off(agreement.compare_collectives(simgrid, singles)) < TOLERANCE


def test_a_judge_notices_a_slower_link(simgrid: Path, tmp_path: Path) -> None:
    case = cases.Case("v5e:2x4", list(range(8)), [cases.Collective("all-reduce", [list(range(8))], 10**7)])
    right = agreement.schedule_of(case)
    wrong = agreement.schedule_of(case)
    for link in wrong["slice"]["links"]:
        link["bytes_per_second"] *= 0.98
    one, other = agreement.simgrid_times(simgrid, [{"schedule": right}, {"schedule": wrong}])
    assert other["step_seconds"] > one["step_seconds"] * 1.01


@pytest.mark.usefixtures("programs")
def test_who_builds_where_another_does_waits(tmp_path: Path) -> None:
    code = "import pathlib, sys; from judges import run; run.built(pathlib.Path(sys.argv[1]))"
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            process.kill()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_bad_case_is_an_error_and_not_a_time(simgrid: Path) -> None:
    case = {"slice": plain_slice((1, 2)), "collectives": [{"kind": "all-sorts", "bytes": 1, "groups": [[0, 1]]}]}
    with pytest.raises(RuntimeError, match="SimGrid failed in 1 of 1"):
        agreement.simgrid_times(simgrid, [case])


@pytest.mark.parametrize("dims", [(2, 4), (4, 4)])
def test_namespaces_route_as_slices_do(dims: tuple[int, int]) -> None:
    chips = mesh.NamespaceMesh(dims)
    count = len(chips.places)
    hops = 0
    for start, end in itertools.permutations(range(count), 2):
        at, length = start, 0
        while at != end:
            at, length = chips.next_hop(at, end), length + 1
        assert length == len(_core.slice_route(f"v5e:{dims[0]}x{dims[1]}", start, end))
        hops += length
    over = sum(len(chips.pairs_over(at, to)) for at in range(count) for to in chips.neighbours(at))
    assert over == hops


def test_groups_cover_the_mesh_and_stride() -> None:
    for dims in ((2, 4), (4, 4)):
        for groups in (
            netns_checks.tiles(dims),
            netns_checks.strided(dims),
            list(netns_checks.ring_orders(dims).values())[:1],
        ):
            assert sorted(itertools.chain(*groups)) == list(range(dims[0] * dims[1]))
    assert netns_checks.tiles((2, 4)) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert netns_checks.strided((2, 4)) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert len({tuple(devices) for devices in netns_checks.cube_placements().values()}) == 6


@pytest.fixture
def no_namespaces_left() -> Iterator[None]:
    yield
    assert not [name for name in spaces() if name.startswith(f"{mesh.PREFIX}-{os.getpid()}-")]


def spaces() -> list[str]:
    folder = Path("/run/netns")
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


@pytest.mark.timed
@pytest.mark.usefixtures("namespaces", "no_namespaces_left")
def test_two_flows_share_a_real_link(programs: dict[str, Path]) -> None:
    lone = {"kind": "collective-permute", "bytes": 5e5, "pairs": [[0, 2]]}
    shared = {"kind": "collective-permute", "bytes": 5e5, "pairs": [[0, 2], [1, 3]]}
    with mesh.NamespaceMesh((1, 4)) as chips:
        one, two = run.socket_seconds(programs["socket_mesh"], chips, plain_slice((1, 4)), [[lone], [shared]])
        assert two / one == pytest.approx(2, rel=0.15)
        assert one == pytest.approx(5e5 / chips.link_bytes_per_second, rel=0.15)


@pytest.mark.usefixtures("namespaces", "no_namespaces_left")
def test_namespaces_go_away_after_a_failure() -> None:
    chips = mesh.NamespaceMesh((1, 2))
    seen: list[str] = []

    def fails() -> None:
        with chips:
            seen.extend(set(chips.names) & set(spaces()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert sorted(seen) == chips.names


OPENS_A_MESH = """
import os, signal, time
from judges.netns.mesh import NamespaceMesh
with NamespaceMesh((1, 2)):
    print(1, flush=True)
"""


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_namespaces_go_away_after_a_signal(number: signal.Signals) -> None:
    code = OPENS_A_MESH + "    time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        mine = f"{mesh.PREFIX}-{process.pid}-"
        assert [name for name in spaces() if name.startswith(mine)]
        process.send_signal(number)
        process.wait(20)
    assert not [name for name in spaces() if name.startswith(mine)]


@pytest.mark.usefixtures("namespaces")
def test_namespaces_of_a_killed_run_are_removed_by_the_next() -> None:
    code = OPENS_A_MESH + "    os.kill(os.getpid(), signal.SIGKILL)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    process.wait(20)
    mine = f"{mesh.PREFIX}-{process.pid}-"
    assert [name for name in spaces() if name.startswith(mine)]
    mesh.remove_left_over()
    time.sleep(0.1)
    assert not [name for name in spaces() if name.startswith(mine)]


def test_tables_are_80_columns_wide() -> None:
    rows = [["collective-broadcast, strided", "1.999", "2.000", "2.000", "+10.0 %", "+10.0 %"]]
    one = table.Table("A title", "words " * 100, netns_checks.HEADER, rows)
    assert max(map(len, one.lines())) <= 80


def test_random_cases_are_the_same_for_a_seed(tmp_path: Path) -> None:
    first = [case.collectives for case in cases.random_cases(20, 3, tmp_path)]
    assert first == [case.collectives for case in cases.random_cases(20, 3, tmp_path)]
    groups = cases.random_groups(random.Random(1), 12)
    assert sorted(itertools.chain(*groups)) == list(range(12))


def test_inversions_count_what_the_judge_tells_apart() -> None:
    assert simgrid_checks._inversions([1.0, 2.0, 2.0001], [1.0, 2.0, 1.5]) == (2, 0)
    assert simgrid_checks._inversions([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == (3, 3)


def test_a_check_that_fails_loses_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> list[table.Table]:
        raise RuntimeError("no luck")

    whole = table.Table("Whole", "", ["compared"], [["one"]])
    tables = list(judges_run._attempted("both", lambda: {"broken": broken, "whole": lambda: [whole]}))
    assert [bool(each.failures) for each in tables] == [True, False]
    assert "no luck" in "\n".join(tables[0].lines())

    def lacks() -> dict[str, judges_run.Check]:
        raise judges_run.Skipped("no simulator")

    (skipped,) = judges_run._attempted("both", lacks)
    assert "no simulator" in "\n".join(skipped.lines())
    assert not skipped.failures
