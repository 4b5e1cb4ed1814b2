"""What every section works with: the stored answers, the workloads, and what has to be compiled first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from aoizora import _core
from aoizora.evaluation import fidelity, sweep
from aoizora.evaluation.fidelity import Pool, Pricer
from aoizora.evaluation.sweep import Workload

NOTHING = "Nothing is stored yet.\n"
ALL_SHARDINGS_FRAMES = (21, 81)  # whole pools are compiled at two frame counts; plans at all three
CODE_SAMPLE = 12
SLICE_NAMES = {"v5e:2x2": "v5e-4", "v5e:2x4": "v5e-8", "v5e:4x4": "v5e-16"}


@cache
def _workloads() -> tuple[Workload, ...]:
    return tuple(sweep.all_workloads())


def workloads(frames: Sequence[int] = sweep.FRAMES) -> list[Workload]:
    """The paper's, slice by slice; always the same objects, whose tables and candidates are made once."""
    return [workload for workload in _workloads() if workload.frames in frames]


@dataclass
class Context:
    """What a section works with."""

    pricer: Pricer
    document: Path
    compile: bool
    progress: Callable[[str, int, int, float, float, str], Any]
    judge: Path | None = None  # the program of judges/simgrid, where it was built
    simulate: fidelity.Simulate = field(default_factory=fidelity.simulation)
    _pools: dict[str, Pool] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)

    @property
    def plots(self) -> Path:
        """The folder of the plots, beside the document and named like it."""
        return self.document.with_suffix("")

    def say(self, what: str, done: int, total: int) -> None:
        """Progress of one piece of work."""
        begun = self._started.setdefault(what, time.monotonic())
        elapsed = time.monotonic() - begun
        self.progress(what, done, total, elapsed, elapsed / max(done, 1) * (total - done), "")

    def pool(self, workload: Workload) -> Pool:
        """Everything stored of a workload, priced and simulated."""
        if workload.name not in self._pools:
            self._pools[workload.name] = fidelity.load(self.pricer, workload, simulate=self.simulate, progress=self.say)
        return self._pools[workload.name]

    def pools(self, wanted: Iterable[Workload] | None = None) -> list[Pool]:
        """Those of which something is stored."""
        found = [self.pool(workload) for workload in wanted or workloads()]
        return [pool for pool in found if pool.fitting]

    def ask(self, workload: Workload, jobs: list[dict[str, Any]], what: str) -> None:
        """Compiles what is missing, if that is wanted."""
        if not self.compile:
            return
        missing = [job for job in jobs if not self.pricer.store.has(self.key(workload, job))]
        if missing:
            name = f"{workload.name}, {what}"
            sweep.ask(workload, self.pricer.store, missing, lambda done, total: self.say(name, done, total))
            self._pools.pop(workload.name, None)

    def key(self, workload: Workload, job: dict[str, Any]) -> str:
        """The name of a job's answer in the store."""
        return self.pricer.key(workload, job["candidate"], job["rung"], job["layers"])

    def plot(self, name: str) -> tuple[Path, str]:
        """Where a plot goes, and how the document shows it."""
        path = self.plots / f"{name}.svg"
        return path, f"![{name}]({self.plots.name}/{name}.svg)\n"


def _need_stage_1(context: Context, workload: Workload) -> None:
    context.ask(workload, [sweep.job(c, "propagate") for c in workload.candidates], "stage 1")


def need_pool(context: Context, workload: Workload) -> None:
    """Every sharding of a workload through the HLO passes."""
    _need_stage_1(context, workload)
    scored = fidelity.stage_1(context.pricer, workload, context.say)
    context.ask(workload, [sweep.job(s.candidate, "passes") for s in scored], "HLO passes")


def need_survivors(context: Context, workload: Workload) -> None:
    """What the planner keeps of a workload, through the HLO passes."""
    _need_stage_1(context, workload)
    scored = fidelity.stage_1(context.pricer, workload, context.say)
    kept = max(fidelity.KEPT_FLOOR, -(-fidelity.shardings(workload) * 15 // 100))
    context.ask(workload, [sweep.job(s.candidate, "passes") for s in scored[:kept]], "HLO passes of survivors")


def need_code(context: Context, pool: Pool) -> None:
    """Code generation of a seeded sample of a workload."""
    sample = sweep.sample(pool.workload, [row.candidate for row in pool.fitting], CODE_SAMPLE)
    context.ask(pool.workload, [sweep.job(c, "code") for c in sample], "code generation")


def stored_form(workload: Workload, candidate: dict[str, Any]) -> dict[str, Any]:
    """The workload's own candidate with the same signature, whose answer a sweep may have stored."""
    return _by_signature(workload).get(sweep.signature(workload, candidate), candidate)


@cache
def _by_signature(workload: Workload) -> dict[str, dict[str, Any]]:
    return {sweep.signature(workload, candidate): candidate for candidate in workload.candidates}


def device_ids(slice_name: str) -> dict[tuple[int, ...], int]:
    """Our device id of each chip's coordinates."""
    return {tuple(chip): k for k, (chip, _) in enumerate(_core.slice_devices(slice_name))}


def code_seconds(context: Context, workload: Workload) -> list[float]:
    """What each stored code generation of a workload took."""
    return [seconds for c in workload.candidates if (seconds := context.pricer.code_seconds(workload, c)) is not None]


def describe(candidate: dict[str, Any]) -> str:
    """A sharding in one line, for tables."""
    mesh = " x ".join(f"{axis['name']} {axis['size']}" for axis in candidate["mesh"] if axis["size"] > 1)
    rules = ", ".join(
        f"{axis} on {'+'.join(on)}"
        for axis, on in candidate["rules"].items()
        if on and axis in ("embed", "heads", "mlp")
    )
    return f"{mesh}; {rules or 'weights whole'}; {candidate['attention']}"
