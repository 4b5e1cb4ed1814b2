"""Kills what writes the plan cache, the cycle memory and a sweep at random moments, and replays a plan many times.

    python bench/reliability.py [--kills 200] [--replays 1000] [--json FILE]

After each kill: every plan in the cache and in the sweep is the one that was stored or absent, every transaction of the
memory is whole or absent; at the end the sweep goes on and finishes. The replays are of one process, whose memory is
read before and after: what grows with the number of plans is a leak. Exit code 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aoizora import Plan, _core, cache, sweeping
from aoizora.cycle_memory import CycleMemory
from aoizora.report.progress import ProgressLine

RECORDING = Path(__file__).parents[1] / "tests" / "data" / "recording_wan13b_v5e_2x2"
REQUEST = json.dumps({"model": "wan2.1-1.3b"})
SETTINGS = {"survivor_floor": 8, "survivor_fraction": 0.05, "runners_up": 5}
VERSIONS = ["jax=recorded"]
TASKS = 12
LONGEST_SECONDS = 0.4  # a kill comes at most so long after the first write


def unpack(folder: Path) -> Path:
    """The recorded answers of the compiler, as the planner replays them."""
    for packed in RECORDING.glob("*.txt.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def replay(recording: Path) -> str:
    return str(_core.replay_plan(str(recording), REQUEST, "v5e:2x2", json.dumps(SETTINGS), 0, VERSIONS))


def tasks() -> list[sweeping.Task]:
    """A sweep over the steps of a video: the plan is the same, its price and key are not."""
    base: dict[str, Any] = {
        "model": "wan2.1-1.3b", "size": (480, 832), "frames": 21, "slice": "v5e:2x2", "videos": 1, "cfg": True,
        "dtype": "bf16", "reserved_hbm_bytes": 0, "settings": SETTINGS,
    }  # fmt: skip
    return [sweeping.Task(f"task{n}", {**base, "steps": 50 + n}) for n in range(TASKS)]


def write_for_ever(folder: Path) -> None:
    """What is killed: all three stores, again and again from empty."""
    text = (folder / "plan.json").read_text(encoding="utf-8")
    memory = CycleMemory(folder / "cycles.sqlite", VERSIONS, "v5e")
    keys = [sweeping._key(task) for task in tasks()]

    def planner(wanted: Sequence[sweeping.Task]) -> Iterator[tuple[sweeping.Task, Any]]:
        for task in wanted:
            yield task, text

    number = time.time_ns()
    print("writing", flush=True)
    while True:
        for key in keys:
            cache.store(key, Plan.loads(text))
            memory.remember({f"{number}": number % 10**9, f"{number} again": number % 10**9})
            number += 1
        sweeping.run(tasks(), folder / "sweep", planner)
        for path in (folder / "sweep").glob("*.json"):
            path.unlink()


def wrong_after_a_kill(folder: Path, expected: dict[str, Any]) -> list[str]:
    found = []
    for task in tasks():
        cached = cache.lookup(sweeping._key(task))
        if cached is not None and cached.data != expected:
            found.append(f"the cache has another plan for {task.name}")
        kept = sweeping.kept(task, folder / "sweep")
        if kept is not None and kept.data != expected:
            found.append(f"the sweep has another plan for {task.name}")
    found += [f"{entry.path.name} is {entry.problem}" for entry in cache.entries() if entry.plan is None]
    with sqlite3.connect(folder / "cycles.sqlite", timeout=30) as database:
        names = {name for (name,) in database.execute("select fingerprint from cycles")}
        if database.execute("pragma integrity_check").fetchone() != ("ok",):
            found.append("the memory of cycles is damaged")
    found += [f"half a transaction: {name}" for name in names if {name.split()[0], f"{name.split()[0]} again"} - names]
    return found


def kills(count: int, progress: ProgressLine) -> dict[str, Any]:
    moments = random.Random(0)
    wrong: list[str] = []
    stored = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["AOIZORA_CACHE_DIR"] = str(folder / "cache")
        (folder / "recording").mkdir()
        text = replay(unpack(folder / "recording"))
        (folder / "plan.json").write_text(text, encoding="utf-8")
        expected = Plan.loads(text).data
        started = time.monotonic()
        for done in range(count):
            child = subprocess.Popen([sys.executable, __file__, "--write", name], stdout=subprocess.PIPE)
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(moments.uniform(0, LONGEST_SECONDS))
            child.send_signal(signal.SIGKILL)
            child.wait()
            wrong += wrong_after_a_kill(folder, expected)
            stored += sum(cache.lookup(sweeping._key(task)) is not None for task in tasks())
            elapsed = time.monotonic() - started
            progress("kills", done + 1, count, elapsed, elapsed / (done + 1) * (count - done - 1), "")
        rows = sweeping.run(tasks(), folder / "sweep", lambda wanted: [(task, text) for task in wanted])
        if [row.outcome for row in rows if row.outcome not in ("kept", "planned")]:
            wrong.append("the sweep did not finish")
        with sqlite3.connect(folder / "cycles.sqlite", timeout=30) as database:
            transactions = database.execute("select count(*) from cycles").fetchone()[0] // 2
    return {"kills": count, "wrong": wrong, "plans_looked_up": stored, "transactions": transactions}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def replays(count: int, progress: ProgressLine) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        recording = unpack(Path(name))
        first = json.loads(replay(recording))["best"]
        held: list[int] = []
        started = time.monotonic()
        for done in range(count):
            assert json.loads(replay(recording))["best"] == first
            held.append(resident_bytes())
            elapsed = time.monotonic() - started
            progress("replays", done + 1, count, elapsed, elapsed / (done + 1) * (count - done - 1), "")
    # What the allocator keeps has settled after a tenth.
    return {"replays": count, "bytes_after_a_tenth": held[count // 10], "bytes_at_the_end": held[-1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--replays", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_for_ever(options.write)
    progress = ProgressLine()
    figures = {**kills(options.kills, progress), **replays(options.replays, progress)}
    progress.close()
    grown = figures["bytes_at_the_end"] - figures["bytes_after_a_tenth"]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(
        f"{figures['kills']} kills: {len(figures['wrong'])} things wrong; {figures['transactions']} transactions and "
        f"{figures['plans_looked_up']} plans read back\n"
        f"{figures['replays']} replayed plans: {grown / 2**20:+.1f} MiB after the first tenth, "
        f"{figures['bytes_at_the_end'] / 2**20:.0f} MiB in all"
    )
    print(*figures["wrong"][:20], sep="\n")
    return 1 if figures["wrong"] or grown > 16 << 20 else 0


if __name__ == "__main__":
    sys.exit(main())
