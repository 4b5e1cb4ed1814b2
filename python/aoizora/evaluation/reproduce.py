"""`aoizora reproduce`: the paper's figures and tables by our planner and simulation, each number beside the paper's.

Each figure or table is one function from what is stored to Markdown (and a plot). The document keeps a section
between two comments, so that one can be made again without the others. What is missing is compiled first, into the
store, unless told otherwise; a run that was stopped goes on where it stopped.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoizora.compiler.queue import WorkerQueue
from aoizora.errors import InvalidRequest
from aoizora.evaluation.fidelity import Pricer
from aoizora.evaluation.sections.ablation import table_4
from aoizora.evaluation.sections.compiling import coverage, figure_4, figure_9
from aoizora.evaluation.sections.context import ALL_SHARDINGS_FRAMES, Context, need_pool, need_survivors, workloads
from aoizora.evaluation.sections.deployed import figure_7, table_2
from aoizora.evaluation.sections.goals import goals
from aoizora.evaluation.sections.judged import attention_kernel, cycles_lent, simgrid
from aoizora.evaluation.sections.links import figure_2, figure_3, figure_6
from aoizora.evaluation.sections.pruning import figure_8, table_3


@dataclass(frozen=True)
class Section:
    """One figure or table."""

    name: str
    title: str
    write: Callable[[Context], str]
    needs: Callable[[Context], None] = lambda context: None


def _whole_pools(context: Context) -> None:
    for workload in workloads(ALL_SHARDINGS_FRAMES):
        need_pool(context, workload)


def _survivors(context: Context) -> None:
    for workload in workloads():
        need_survivors(context, workload)


def _survivors_of_largest(context: Context) -> None:
    for workload in workloads():
        if workload.slice == "v5e:4x4":
            need_survivors(context, workload)


SECTIONS = (
    Section("goals", "Goals", goals, _whole_pools),
    Section("coverage", "Coverage", coverage),
    Section("figure2", "Figure 2: placements of one sharding", figure_2),
    Section("figure3", "Figure 3: permutes alone and together", figure_3),
    Section("figure4", "Figure 4: what each rung of the compiler costs", figure_4, _survivors),
    Section("figure6", "Figure 6: one all-reduce under two placements", figure_6),
    Section("figure7", "Figure 7: one denoising step", figure_7, _survivors),
    Section("table2", "Table 2: speed-ups", table_2, _survivors),
    Section("figure8", "Figure 8: what the pruning keeps", figure_8, _whole_pools),
    Section("table3", "Table 3: fidelity of the two stages", table_3, _whole_pools),
    Section("table4", "Table 4: stage 1 alone, the whole planner, the one-block proxy", table_4, _survivors_of_largest),
    Section("figure9", "Figure 9: planning time", figure_9, _survivors),
    Section("simgrid", "SimGrid on best and worst placements", simgrid, _whole_pools),
    Section("cycles", "Cycles lent between programs", cycles_lent, _survivors),
    Section("attention", "The attention kernel's cycles", attention_kernel),
)
NAMES = tuple(section.name for section in SECTIONS)
INTRODUCTION = """# Evaluation

Written by `aoizora reproduce`; each section again by `aoizora reproduce --only NAME`. Wan 2.1 14B, bf16, one video
with classifier-free guidance, {versions}. No TPU was used: *predicted* is Q2, the planner's own score; *simulated* is
the link-level simulation (docs/simulation.md); *measured* is the paper's TPU, or this machine's clock where compile
times are shown. Numbers in brackets are the paper's.
"""


def run(
    document: Path,
    store: Path,
    only: Sequence[str] = (),
    *,
    compile: bool = True,
    judge: Path | None = None,
    progress: Callable[[str, int, int, float, float, str], Any] = lambda *_: None,
) -> dict[str, str]:
    """Writes the document, or the named sections of it; returns the Markdown of each section written, by name."""
    unknown = sorted(set(only) - set(NAMES))
    if unknown:
        raise InvalidRequest(f"no figure or table is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    _check_packages()
    if not compile and not store.exists():
        raise InvalidRequest(f"{store} does not exist: without --no-compile it is filled")
    context = Context(Pricer(store), document, compile, progress, judge)
    written: dict[str, str] = {}
    document.parent.mkdir(parents=True, exist_ok=True)
    try:
        for section in SECTIONS:
            if only and section.name not in only:
                continue
            if compile:
                section.needs(context)
            text = written[section.name] = section.write(context)
            old = document.read_text(encoding="utf-8") if document.exists() else ""
            document.write_text(splice(old, section, text), encoding="utf-8")  # each at once: a stopped run keeps them
    finally:
        context.pricer.close()
    return written


def splice(document: str, section: Section, text: str) -> str:
    """The document with a section put in its place; the others stay as they are."""
    found = dict(re.findall(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->\n", document, re.DOTALL))
    found[section.name] = f"## {section.title}\n\n{text}"
    parts = [INTRODUCTION.format(versions=", ".join(WorkerQueue.compiler_versions()))]
    parts += [f"<!-- {s.name} -->\n{found[s.name]}<!-- /{s.name} -->\n" for s in SECTIONS if s.name in found]
    return "\n".join(parts)


def _check_packages() -> None:
    for package in ("matplotlib", "scipy"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise InvalidRequest(
                f'"aoizora reproduce" needs {package}: pip install "aoizora[evaluate]" brings it'
            ) from None
