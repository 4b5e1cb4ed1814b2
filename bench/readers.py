"""Times the readers of compiler text beside the compilers' own, on the recorded programs.

    python bench/readers.py [--runs N] [--json FILE]

HLO: ours as the planner calls it against XLA's (jaxlib._hlo.hlo_module_from_text), alone and with what ranking then
takes from the program. StableHLO, as recorded and as Shardy hands it on (generic form), against MLIR's
(jaxlib.mlir.ir.Module.parse). The text is in memory already; the two take turns; medians of processor time. Memory is
what a process of its own has resident at most while it reads, less what it had before, with the text it was given.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aoizora import _core

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "hlo"
SLICE = "v5e:2x4"
RATIO = 10  # at least, of each HLO text with the schedule taken, and of all StableHLO
MEMORY = 6  # at most, of the text

CHILD = """
import json, re, sys
from aoizora import _core
read = {"hlo": _core.read_hlo, "stablehlo": _core.read_stablehlo}[sys.argv[1]]
read("HloModule m\\n\\nENTRY %e {\\n ROOT %c = f32[] constant(0)\\n}" if sys.argv[1] == "hlo"
     else "module {\\n func.func @main() {\\n return\\n }\\n}")
text = sys.stdin.buffer.read().decode()
def kilobytes(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts anew
before = kilobytes("VmRSS")
program = read(text)
print(json.dumps([(kilobytes("VmHWM") - before) * 1024, program.instruction_count]))
"""


def texts() -> list[tuple[str, str, str]]:
    """(name, dialect, text) of every recorded program, StableHLO also as it is after propagation."""
    out = []
    for path in sorted(DATA.glob("*.hlo*.txt.gz")):
        out.append((path.name.removesuffix(".gz"), "hlo", gzip.decompress(path.read_bytes()).decode()))
    for path in sorted(DATA.glob("*.mlir.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        out.append((path.name.removesuffix(".gz"), "stablehlo", text))
        out.append((path.name.removesuffix(".gz") + ", propagated", "stablehlo", propagated(text)))
    return out


@functools.cache
def mlir_context() -> Any:
    from jax._src.interpreters import mlir

    return mlir.make_ir_context()


def parse_mlir(text: str) -> Any:
    from jaxlib.mlir import ir

    with mlir_context():
        return ir.Module.parse(text)


def propagated(text: str) -> str:
    from jaxlib.mlir import passmanager

    module = parse_mlir(text)
    with mlir_context():
        passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
        return str(module.operation.get_asm(print_generic_op_form=True))


def alternately(runs: int, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of the processor for each call. What a call returns is freed outside the time.

    No reader has threads, and the wall clock would count what else the machine does.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs + 1):
        for name, call in calls.items():
            began = time.thread_time()
            kept = call()
            seconds = time.thread_time() - began
            del kept
            if run > 0:  # the first one warms up
                taken[name].append(seconds)
    return {name: statistics.median(values) for name, values in taken.items()}


def memory(dialect: str, text: str) -> int:
    """Most bytes resident while reading. Small allocations too get pages of their own, so that none is used again."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TOP_PAD_": "0"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, dialect], input=text.encode(), env=environment, capture_output=True, check=True
    )
    return int(json.loads(done.stdout)[0])


def measure(name: str, dialect: str, text: str, runs: int) -> dict[str, Any]:
    from jaxlib import _hlo

    read = _core.read_hlo if dialect == "hlo" else _core.read_stablehlo
    peer = _hlo.hlo_module_from_text if dialect == "hlo" else parse_mlir
    calls: dict[str, Callable[[], Any]] = {"peer": lambda: peer(text), "read": lambda: read(text)}
    if dialect == "hlo":
        calls["extract"] = lambda: _core.extract_steps(read(text), SLICE)
    seconds = alternately(runs, calls)
    bytes_ = len(text.encode())
    row = {
        "name": name,
        "dialect": dialect,
        "text_bytes": bytes_,
        "instructions": read(text).instruction_count,
        "peer_seconds": seconds["peer"],
        "read_seconds": seconds["read"],
        "read_ratio": seconds["peer"] / seconds["read"],
        "read_bytes_per_second": bytes_ / seconds["read"],
        "memory_of_text": memory(dialect, text) / bytes_,
    }
    if dialect == "hlo":
        row |= {"extract_seconds": seconds["extract"], "extract_ratio": seconds["peer"] / seconds["extract"]}
    return row


def overall(rows: list[dict[str, Any]], key: str) -> float:
    return float(sum(row["peer_seconds"] for row in rows) / sum(row[key] for row in rows))


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'text':36}{'kB':>6}{'instr.':>8}{'peer ms':>9}{'read ms':>9}{'x':>6}{'+extract':>10}{'x':>6}{'memory':>8}")
    for row in rows:
        extract = (
            f"{row['extract_seconds'] * 1e3:10.2f}{row['extract_ratio']:6.1f}" if "extract_ratio" in row else " " * 16
        )
        print(
            f"{row['name']:36}{row['text_bytes'] / 1e3:6.0f}{row['instructions']:8}{row['peer_seconds'] * 1e3:9.2f}"
            f"{row['read_seconds'] * 1e3:9.2f}{row['read_ratio']:6.1f}{extract}{row['memory_of_text']:7.1f}x"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, help="times each text is read by each reader (30)")
    parser.add_argument("--json", default="", metavar="FILE", help="where the figures go; - for standard output")
    options = parser.parse_args()
    rows = [measure(name, dialect, text, options.runs) for name, dialect, text in texts()]
    of = {dialect: [row for row in rows if row["dialect"] == dialect] for dialect in ("hlo", "stablehlo")}
    result = {
        "cpus": os.cpu_count(),
        "runs": options.runs,
        "required": {"hlo_extract_ratio": RATIO, "stablehlo_read_ratio": RATIO, "memory_of_text": MEMORY},
        "hlo_read_ratio": overall(of["hlo"], "read_seconds"),
        "hlo_extract_ratio": overall(of["hlo"], "extract_seconds"),
        "stablehlo_read_ratio": overall(of["stablehlo"], "read_seconds"),
        "texts": rows,
    }
    met = result["stablehlo_read_ratio"] >= RATIO and all(
        row.get("extract_ratio", RATIO) >= RATIO and row["memory_of_text"] <= MEMORY for row in rows
    )
    if options.json == "-":
        print(json.dumps(result, indent=2))
        return 0 if met else 1
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    print_table(rows)
    print(
        f"all HLO: {result['hlo_read_ratio']:.1f} times XLA's reader, {result['hlo_extract_ratio']:.1f} with what "
        f"ranking takes; all StableHLO: {result['stablehlo_read_ratio']:.1f} times MLIR's"
    )
    print(
        f"at least {RATIO} times on each HLO text and on all StableHLO, and at most {MEMORY} times the text: "
        f"{'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
