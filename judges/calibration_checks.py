"""What `aoizora calibrate` finds of a mesh of namespaces whose links' rate is known, and what `aoizora measure` then
says of plans that run over it."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from aoizora import _core
from judges.netns.mesh import NamespaceMesh
from judges.netns.run import run_everywhere
from judges.netns_checks import MEGABITS, TOLERANCE
from judges.table import Table, percent

# JAX on CPU has no rings for the others: its reduce-scatter halves and doubles, its all-to-all sends one way at a time.
KINDS = ("collective-permute", "all-gather", "all-reduce")
SIZES = "200k,800k"
LEAST_CORRELATION = 0.8
RECORDING = Path(__file__).parents[1] / "tests" / "data" / "recording_wan13b_v5e_2x2"
# Compiling is not what is timed.
QUICK = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_multi_thread_eigen=false",
}


def chips_by_process(dims: tuple[int, int]) -> list[int]:
    """Where each process runs: JAX numbers chips with x fastest, a mesh of namespaces with y fastest."""
    return [x * dims[1] + y for y in range(dims[1]) for x in range(dims[0])]


def calibrated(
    mesh: NamespaceMesh, out: Path, kinds: tuple[str, ...] = KINDS, sizes: str = SIZES, repeats: int = 3
) -> dict[str, Any]:
    """The report of `aoizora calibrate` in every namespace; the descriptor goes to `out`."""
    name = f"v5e:{mesh.dims[0]}x{mesh.dims[1]}"
    arguments = ["calibrate", "--slice", name, "--sizes", sizes, "--repeats", str(repeats), "--warm-up", "1"]
    arguments += ["--quiet", "--json", *(word for kind in kinds for word in ("--only", kind))]
    chips = chips_by_process(mesh.dims)
    outs = [out if k == 0 else out.with_suffix(f".{k}") for k in range(len(chips))]
    printed = run_everywhere(mesh, "aoizora.cli", [[*arguments, "--out", str(each)] for each in outs], chips, QUICK)
    if any(each.exists() for each in outs[1:]):
        raise RuntimeError("a process other than the first wrote a descriptor")
    return _json_of(printed[0])


def measured(mesh: NamespaceMesh, plan: Path, descriptor: Path, top: int) -> dict[str, Any]:
    """The report of `aoizora measure` in every namespace."""
    arguments = ["measure", str(plan), "--slice", str(descriptor), "--top", str(top), "--layers", "1"]
    arguments += ["--repeats", "5", "--quiet", "--json"]
    chips = chips_by_process(mesh.dims)
    with tempfile.TemporaryDirectory() as folder:
        each = [[*arguments, "--out", f"{folder}/{k}.json"] for k in range(len(chips))]
        return _json_of(run_everywhere(mesh, "aoizora.cli", each, chips, QUICK)[0])


def _json_of(printed: str) -> dict[str, Any]:
    """Warnings of libraries stand before it."""
    result: dict[str, Any] = json.loads(printed[printed.index("{\n") :])
    return result


def link_rate(report: dict[str, Any]) -> float:
    """Bytes a second that a link carries, by the descriptor."""
    return float(report["descriptor"]["hardware"]["ici_bytes_per_second"]["value"])


def calibrate(dims: tuple[int, int]) -> Table:
    """The link's rate, and each microbenchmark beside what the planner makes of it."""
    about = (
        f"aoizora calibrate in {dims[0] * dims[1]} JAX processes, one a namespace, gloo on CPU; {MEGABITS} Mbit/s a "
        "link and direction. Predicted: by the planner with the numbers found. The link's rate may be "
        f"{100 * TOLERANCE:g} % off what htb lets through less the frames' headers. Two processes that send to each "
        "other at once share one connection of gloo's, which then is slower than the links: gathers in groups of two."
    )
    header = ["microbenchmark", "MB", "ms", "predicted", "off"]
    table = Table(f"Calibrate between namespaces, {dims[0]}x{dims[1]}", about, header)
    with NamespaceMesh(dims, MEGABITS) as mesh, tempfile.TemporaryDirectory() as folder:
        report = calibrated(mesh, Path(folder) / "found.json")
        for case in report["microbenchmarks"]:
            real, ours = case["measured_seconds"], case["predicted_seconds"]
            what = f"{case['kind']}, {case['what']}"
            figures = [f"{case['size'] / 1e6:.3f}", f"{1e3 * real:.1f}", f"{1e3 * ours:.1f}"]
            table.rows.append([what, *figures, percent(ours / real - 1, 1)])
        off = link_rate(report) / mesh.link_bytes_per_second - 1
    table.notes.append(
        f"Found: {link_rate(report) / 1e6:.3f} MB/s a link; configured {mesh.link_bytes_per_second / 1e6:.3f}, "
        f"{percent(off, 1)}."
    )
    if abs(off) > TOLERANCE:
        table.failures.append(f"the link's rate is {percent(off, 1)} off")
    return table


def recorded_plan(folder: Path) -> Path:
    """The plan that recorded answers of the TPU compiler give: Wan 2.1 1.3B, 480x832, 21 frames, v5e:2x2."""
    for packed in RECORDING.glob("*.txt.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    settings = json.dumps({"survivor_floor": 8, "survivor_fraction": 0.05, "runners_up": 5})
    plan = folder / "plan.json"
    request = json.dumps({"model": "wan2.1-1.3b"})
    plan.write_text(_core.replay_plan(str(folder), request, "v5e:2x2", settings, 0, ["jax=recorded"]))
    return plan


def measure(top: int = 6) -> Table:
    """Plans over a mesh whose numbers `aoizora calibrate` found just before."""
    about = (
        "aoizora calibrate, then aoizora measure with its descriptor, in 4 JAX processes, one a namespace, "
        f"{MEGABITS} Mbit/s a link and direction: the best plans of Wan 2.1 1.3B, 480x832, 21 frames; a small "
        "transformer of the model's heads stands for it, one block. Predicted: Q2 of the program that ran, as JAX "
        f"compiled it for the CPU. A rank correlation of {LEAST_CORRELATION:g} is asked for."
    )
    table = Table("Plans measured between namespaces, 2x2", about, ["plan", "ms", "predicted", "off"])
    with NamespaceMesh((2, 2), MEGABITS) as mesh, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calibrated(mesh, folder / "found.json", sizes="20k,100k,400k")
        report = measured(mesh, recorded_plan(folder), folder / "found.json", top)
    for each in report["plans"]:
        real, ours = each["median_seconds"], each["predicted_seconds"]
        figures = [f"{1e3 * real:.1f}", f"{1e3 * ours:.1f}", percent(ours / real - 1, 1)]
        table.rows.append([_short(each["sharding"]), *figures])
    table.notes.append(f"Rank correlation of predicted and measured: {report['correlation']:.2f}.")
    if report["correlation"] < LEAST_CORRELATION:
        table.failures.append("plans run in another order than predicted")
    return table


def _short(sharding: str, width: int = 46) -> str:
    """Without what all of them share."""
    text = sharding.replace(" batch on data;", "").replace(" sequence on context;", "").replace(" on ", ":")
    return text if len(text) <= width else text[: width - 3] + "..."
