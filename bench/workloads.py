"""Plans the paper's 18 workloads with the real compiler and writes docs/workloads.md.

    python bench/workloads.py [docs/workloads.md] [STORE]

Plans that are in the cache already are not made again, so an interrupted run goes on where it stopped; so do the
compiler's answers where STORE names a file to keep them in.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import aoizora
from aoizora.evaluation.tables import BLOCK_MS
from aoizora.report import terminal
from aoizora.report.progress import ProgressLine

SLICES = ("v5e:2x2", "v5e:2x4", "v5e:4x4")
SIZES = ((480, 832), (720, 1280))
FRAMES = (21, 41, 81)

INTRODUCTION = """# The paper's 18 workloads

Wan 2.1 14B, bf16, one video, CFG (model batch 2), planned by `python bench/workloads.py` with {versions}.
Block times are predictions (compiler's cycles, link model), as they come out; of the model's inputs one is fitted,
on the 720p rows of the paper's Table 4 (docs/topology.md). The paper's times are measured on v5e-16; it halves a run of
two layers, so that half of entry and exit, 0.5 to 3 ms, is in them. Gains are by the HLO passes alone; of
shardings that these find even the plan is one that needs less memory (docs/plan-format.md): a gain may be
a little below 0.

| slice | size | frames | block ms | paper | step s | HBM GiB | sharding | attention | stock gain % | 2 x rest gain % |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def gain(comparison: dict) -> str:
    if "reason" in comparison:
        return "does not fit" if "not fit" in comparison["reason"] else "cannot run"
    return f"{comparison['gain_percent']:.1f}"


def row(slice_name: str, size: tuple[int, int], frames: int, plan: aoizora.Plan) -> str:
    predicted = plan.data["best"]["predicted"]
    paper = f"{BLOCK_MS[size[0], frames]:.2f}" if slice_name == "v5e:4x4" else ""
    sharding = " x ".join(f"{axis} {n}" for axis, n in plan.mesh_shape.items() if n > 1)
    rules = ", ".join(
        f"{a} on {'+'.join(m)}" for a, m in plan.axis_rules.items() if m and a in ("embed", "heads", "mlp")
    )
    windowed = "; windowed einsum off" if plan.data["compiler_options"] else ""
    gains = [gain(comparison) for comparison in plan.data["comparisons"]]
    gains += [""] * (2 - len(gains))
    cells = [
        slice_name, f"{size[0]}x{size[1]}", str(frames), terminal.ms(predicted["block_seconds"]), paper,
        f"{predicted['step_seconds']:.3f}", f"{plan.data['hbm']['bytes'] / terminal.GIB:.2f}",
        f"{sharding}; {rules}{windowed}", plan.data["attention"], *gains[:2],
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/workloads.md")
    store = sys.argv[2] if len(sys.argv) > 2 else None
    rows, versions = [], []
    for slice_name in SLICES:
        for size in SIZES:
            for frames in FRAMES:
                started = time.monotonic()
                plan = aoizora.plan("wan2.1-14b", size, frames, slice_name, progress=ProgressLine(), store=store)
                rows.append(row(slice_name, size, frames, plan))
                versions = plan.data["versions"]
                print(f"{rows[-1]}  ({time.monotonic() - started:.0f} s)", flush=True)
    target.write_text(INTRODUCTION.format(versions=", ".join(versions)) + "\n".join(rows) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
