"""Builds the judges, runs them and writes what they say: `make judge`, or python -m judges.run.

Exit status 1 where something was further off than its table allows.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from judges import calibration_checks, netns_checks, simgrid_checks
from judges.netns import mesh
from judges.table import Table

ROOT = Path(__file__).parents[1]
INTRODUCTION = """\
# What two judges say

Written by `make judge`. Two things that are not the planner time the same
collectives: SimGrid, a simulator of networks, and real sockets and real JAX
collectives between network namespaces. They share no code with the library:
`judges/` has its own reader of schedules, its own routes and its own rules by
which a collective becomes messages, written from docs/simulation.md.

What judge and planner share, and therefore cannot judge:

- the reader of HLO and the compute times, wherever a whole program is timed
  (its schedule comes from the library);
- the hardware numbers of a slice: rates, limits of a flow, latencies, start-up
  times, ring directions;
- the words of docs/simulation.md: which ring a group takes is one rule, written
  down twice. Not so for JAX, whose rings are gloo's own.

What they do not share: how messages share links (SimGrid's solver, the kernel's
queues), the order of events, routes, the expansion of groups, and for JAX the
collectives themselves.

Neither bed knows how ICI's switches arbitrate, nor XLA's own collective code on
TPU: both say how plain links share, not how a TPU's do. Two permutes on one
link get 0.50 of a lone one's rate here, the paper measured 0.66 (Figure 3).
"""


Check = Callable[[], list[Table]]


class Skipped(Exception):
    """A machine lacks something a judge needs."""


def built(folder: Path) -> dict[str, Path]:
    """The judges' programs that this machine can build. Processes that build into one folder wait for each other."""
    for program in ("cmake", "c++"):
        if shutil.which(program) is None:
            raise Skipped(f"no {program}")
    if not any((Path(place) / "nlohmann" / "json.hpp").is_file() for place in ("/usr/include", "/usr/local/include")):
        raise Skipped("no nlohmann/json.hpp (Debian: nlohmann-json3-dev)")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # A program that a second process links while the first runs it cannot be run ("Text file busy").
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            ["cmake", "-S", str(ROOT / "judges"), "-B", str(folder)],
            ["cmake", "--build", str(folder), "-j", "2"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    names = ("simgrid_judge", "socket_mesh")
    return {name: folder / name for name in names if (folder / name).is_file()}


def _simgrid(programs: dict[str, Path], count: int) -> dict[str, Check]:
    if "simgrid_judge" not in programs:
        raise Skipped("no SimGrid (Debian: libsimgrid-dev)")
    judge = programs["simgrid_judge"]
    return {
        "SimGrid: seconds": lambda: [simgrid_checks.agreement(judge, count, max(1, count // 10))],
        "SimGrid: order of placements": lambda: [simgrid_checks.program_order(judge)],
    }


def _namespaces(programs: dict[str, Path]) -> dict[str, Check]:
    reason = mesh.reason_to_skip()
    if reason is not None:
        raise Skipped(reason)
    sockets = programs["socket_mesh"]
    return {
        "Sockets on 2x4": lambda: [netns_checks.sockets(sockets, (2, 4))],
        "Sockets on 4x4": lambda: [netns_checks.sockets(sockets, (4, 4))],
        "JAX on 2x4": lambda: netns_checks.jax_collectives(sockets),
        "Calibrate on 2x4": lambda: [calibration_checks.calibrate((2, 4))],
        "Measure on 2x2": lambda: [calibration_checks.measure()],
    }


def _attempted(judge: str, checks: Callable[[], dict[str, Check]]) -> Iterator[Table]:
    """One check that fails must not lose the tables of the others."""
    try:
        wanted = checks()
    except Skipped as reason:
        yield Table(judge, "", [], skipped=str(reason))
        return
    for title, check in wanted.items():
        begin = time.monotonic()
        try:
            yield from check()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            yield Table(title, "", [], skipped=f"failed: {error}", failures=[f"{title} failed"])
        print(f"{title}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the judges that this machine can run."""
    parser = argparse.ArgumentParser(prog="judges", description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "judges", help="folder to build the judges in")
    parser.add_argument("--programs", type=int, default=500, help="random programs for SimGrid")
    parser.add_argument("--only", choices=("simgrid", "namespaces"), help="one of the two judges")
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    tables: list[Table] = []
    try:
        programs = built(options.build)
    except Skipped as reason:
        tables = [Table("Both judges", "", [], skipped=str(reason))]
    else:
        if options.only != "namespaces":
            tables += _attempted("SimGrid", lambda: _simgrid(programs, options.programs))
        if options.only != "simgrid":
            tables += _attempted("Network namespaces", lambda: _namespaces(programs))
    text = "\n".join([INTRODUCTION, *(line for table in tables for line in table.lines())]).rstrip() + "\n"
    if options.out is not None:
        options.out.write_text(text)
    if options.json:
        print(json.dumps([table.as_json() for table in tables], indent=1))
    else:
        print(text, end="")
    return 1 if any(table.failures for table in tables) else 0


if __name__ == "__main__":
    sys.exit(main())
