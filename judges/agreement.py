"""SimGrid against the library: random programs, single collectives, schedules of compiled programs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoizora import _core
from judges.cases import Case, Collective

TIMEOUT_SECONDS = 600


def simgrid_times(
    judge: Path, cases: Sequence[dict[str, Any]], model: str = "CM02", jobs: int = 0
) -> list[dict[str, Any]]:
    """What SimGrid says of each case (simgrid/main.cpp has the format); the cases are dealt to some processes."""
    jobs = max(1, min(jobs or os.cpu_count() or 1, len(cases)))
    running = []
    for share in range(jobs):
        process = subprocess.Popen(
            [judge], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"model": model, "cases": list(cases[share::jobs])}))
        process.stdin.close()
        process.stdin = None
        running.append(process)
    results: list[dict[str, Any]] = [{}] * len(cases)
    try:
        for share, process in enumerate(running):
            out, errors = process.communicate(timeout=TIMEOUT_SECONDS)
            if process.returncode != 0:
                raise RuntimeError(errors.strip()[:500])
            results[share::jobs] = json.loads(out)["results"]
    finally:
        for process in running:
            process.kill()
    failed = [result["error"] for result in results if "error" in result]
    if failed:
        raise RuntimeError(f"SimGrid failed in {len(failed)} of {len(cases)} cases: {failed[0][:300]}")
    return results


@dataclass(frozen=True)
class Compared:
    """Seconds of one case: SimGrid's and the library's."""

    what: str
    judge_seconds: float
    our_seconds: float

    @property
    def difference(self) -> float:
        """Relative to SimGrid's."""
        if self.judge_seconds == self.our_seconds:
            return 0.0
        return self.our_seconds / self.judge_seconds - 1 if self.judge_seconds > 0 else float("inf")


def schedule_of(case: Case) -> dict[str, Any]:
    """The case's program as a schedule, read by the library."""
    schedule: dict[str, Any] = json.loads(_core.schedule(case.text, "", "", case.slice, case.devices, 1, "passes"))
    return schedule


def compare_programs(judge: Path, cases: Sequence[Case], model: str = "CM02") -> list[Compared]:
    """Whole programs of several collectives in flight, started at different times."""
    times = simgrid_times(judge, [{"schedule": schedule_of(case)} for case in cases], model)
    result = []
    for case, judged in zip(cases, times, strict=True):
        ours = json.loads(_core.simulate(case.text, "", "", case.slice, case.devices, 1, "passes"))["step_seconds"]
        what = " + ".join(collective.kind for collective in case.collectives)
        result.append(Compared(what, judged["step_seconds"], ours))
    return result


def simulated_seconds(collective: Collective, slice_path: str, devices: list[int]) -> float:
    """The library's simulation of one collective alone."""
    return float(
        _core.collective(collective.kind, json.dumps(collective.groups), collective.bytes, devices, slice_path)
    )


def compare_collectives(
    judge: Path, cases: Iterable[tuple[Collective, str, list[int]]], model: str = "CM02"
) -> list[Compared]:
    """Single collectives; the groups are expanded by each side itself, from device ids."""
    cases = list(cases)
    wanted = []
    for collective, slice_path, devices in cases:
        slice_json = schedule_of(Case(slice_path, devices, [collective]))["slice"]
        placed = [[devices[rank] for rank in group] for group in collective.groups]
        entry = {"kind": collective.kind, "bytes": collective.bytes}
        entry["pairs" if collective.kind == "collective-permute" else "groups"] = placed
        wanted.append({"slice": slice_json, "collectives": [entry]})
    return [
        Compared(collective.kind, max(judged["end_seconds"]), simulated_seconds(collective, slice_path, devices))
        for (collective, slice_path, devices), judged in zip(cases, simgrid_times(judge, wanted, model), strict=True)
    ]
