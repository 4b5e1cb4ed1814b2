"""What XLA:TPU leaves in its dump directory, and when a file there is whole.

The order of writing (libtpu 0.0.52 for v5e, v6e, v5p and tpu7x):
  1. `*.after_optimizations.txt`, `*.after_optimizations-memory-usage-report.txt` and others, in parallel; all are
     closed before the next step
  2. `*.after_optimizations_after_buffer_assignment.txt`, the same text as the first once more
  3. code generation, over 90 % of the compile
  4. `*.after_codegen.txt`: the HLO with estimated_cycles and collective_algorithm_config
So the files of step 1 are whole as soon as that of step 2 exists, however little of it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PASSES_TEXT = ".after_optimizations.txt"
PASSES_DONE = ".after_optimizations_after_buffer_assignment.txt"
CODE_TEXT = ".after_codegen.txt"
MEMORY_REPORT = ".after_optimizations-memory-usage-report.txt"

# The values and live ranges of the buffer assignment are a third of all that is dumped, and nobody reads them.
OPTIONS = {"xla_dump_buffer_assignment_analysis": False}

# A computation ends at a line that is exactly this; Pallas attributes span lines and may start one with "}}".
_END_OF_COMPUTATION = re.compile(r'^\}(, execution_thread="[^"]*")?$', re.MULTILINE)


@dataclass(frozen=True)
class Dumped:
    """Text of one module and what the compiler says of its HBM."""

    text: str
    memory_report: str


def is_whole(text: str) -> bool:
    """True if an HLO text closes its entry computation and its module."""
    body = text.rstrip("\n")
    if len(body) == len(text) or not _END_OF_COMPUTATION.fullmatch(body[body.rfind("\n") + 1 :]):
        return False
    entry = text.rfind("\nENTRY ")
    return text.startswith("HloModule") and entry >= 0 and _END_OF_COMPUTATION.search(text, entry) is not None


def passes_done(directory: Path) -> bool:
    """True once the HLO passes are over and what they dumped is whole."""
    return _find(directory, PASSES_DONE) is not None


def read(directory: Path, suffix: str) -> Dumped | None:
    """The module whose text has this suffix; None where it is absent or cut."""
    path = _find(directory, suffix)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    if not is_whole(text):
        return None
    report = path.with_name(path.name.removesuffix(suffix) + MEMORY_REPORT)
    return Dumped(text, report.read_text(encoding="utf-8", errors="replace") if report.exists() else "")


def _find(directory: Path, suffix: str) -> Path | None:
    # One compile dumps one module; should there be helpers beside it, the largest is the program.
    found = [path for path in directory.glob("*" + suffix) if path.is_file()]
    return max(found, key=lambda path: (path.stat().st_size, path.name), default=None)
