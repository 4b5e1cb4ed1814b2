"""Asks the compiler for every sharding of the evaluation's workloads; the answers stay in a store, so a run goes on
where it stopped.

    python -m aoizora.evaluation.sweep STORE [SLICE:HEIGHT:FRAMES ...] [--top N] [--code N] [--attention KIND]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aoizora import _core
from aoizora.compiler.store import AnswerStore, StoredQueue
from aoizora.plan_file import ATTENTION_KINDS

SIZES = {480: (480, 832), 720: (720, 1280)}
FRAMES = (21, 41, 81)
SLICES = ("v5e:2x2", "v5e:2x4", "v5e:4x4")
PROXY_LAYERS = 3
SAMPLE_SEED = 20


@dataclass(frozen=True)
class Workload:
    """One of the paper's workloads on one slice."""

    slice: str
    height: int
    frames: int
    model: str = "wan2.1-14b"

    @property
    def name(self) -> str:
        """For people and files: "v5e:4x4 480p 21"."""
        return f"{self.slice} {self.height}p {self.frames}"

    @cached_property
    def request_json(self) -> str:
        """The request with every default filled in."""
        size = SIZES[self.height]
        request = {"model": self.model, "height": size[0], "width": size[1], "frames": self.frames}
        return str(_core.request_json(json.dumps(request)))

    @cached_property
    def table_json(self) -> str:
        """The workload table."""
        return str(_core.make_workload(self.request_json))

    @cached_property
    def layers(self) -> int:
        """Depth of the deployed model."""
        return int(json.loads(self.table_json)["layers"])

    @cached_property
    def candidates(self) -> list[dict[str, Any]]:
        """Legal, distinct shardings that may fit, with each attention kind; in the room's own order."""
        budget = json.loads(_core.slice_json(self.slice))["hardware"]["hbm_bytes"]["value"]
        found = json.loads(_core.enumerate(self.table_json, self.slice, json.dumps({"hbm_budget_bytes": int(budget)})))
        return [entry["candidate"] for entry in found["candidates"]]

    def queue(self, store: AnswerStore, workers: int | None = None) -> StoredQueue:
        """The compiler for this workload."""
        name = json.loads(_core.slice_json(self.slice))["name"]
        return StoredQueue(store, json.loads(self.request_json), name, _core.slice_devices(self.slice), workers)


def all_workloads(frames: Iterable[int] = FRAMES) -> Iterator[Workload]:
    """The paper's workloads, slice by slice."""
    for slice_name, height, count in itertools.product(SLICES, SIZES, frames):
        yield Workload(slice_name, height, count)


def job(candidate: dict[str, Any], rung: str, placement: list[int] | None = None) -> dict[str, Any]:
    """A job of the compiler queue, but for its id."""
    return {"candidate": candidate, "rung": rung, "layers": PROXY_LAYERS, "placement": placement}


def ask(
    workload: Workload,
    store: AnswerStore,
    jobs: list[dict[str, Any]],
    progress: Callable[[int, int], None] = lambda done, total: None,
    workers: int | None = None,
) -> list[dict[str, Any]]:
    """Answers of all jobs, in the order of the jobs."""
    answers: list[dict[str, Any]] = [{}] * len(jobs)
    with workload.queue(store, workers) as queue:
        for k, wanted in enumerate(jobs):
            queue.submit(json.dumps({**wanted, "id": k, "priority": float(k)}))
        for done in range(len(jobs)):
            answer = queue.next()
            answers[answer["id"]] = answer
            progress(done + 1, len(jobs))
    return answers


def stage_1(
    workload: Workload, store: AnswerStore, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[tuple[float, dict[str, Any]]]:
    """Q1 in seconds of every candidate the compiler lowers, and the candidate; least first."""
    candidates = workload.candidates
    answers = ask(workload, store, [job(candidate, "propagate") for candidate in candidates], progress)
    scored = []
    for candidate, answer in zip(candidates, answers, strict=True):
        if answer["outcome"] == "ok":
            text = _core.predict(
                answer["text"], workload.table_json, json.dumps(candidate), workload.slice, workload.layers
            )
            scored.append((float(json.loads(text)["q1"]["seconds"]), candidate))
    return sorted(scored, key=lambda pair: (pair[0], signature(workload, pair[1])))


def signature(workload: Workload, candidate: dict[str, Any]) -> str:
    """The text that two candidates share exactly if they are one sharding."""
    return str(_core.canonical_signature(workload.table_json, json.dumps(candidate)))


def sample(workload: Workload, candidates: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """A seeded sample, the same in every run."""
    ordered = sorted(candidates, key=lambda candidate: signature(workload, candidate))
    return random.Random(f"{SAMPLE_SEED} {workload.name}").sample(ordered, min(count, len(ordered)))


def _report(what: str) -> Callable[[int, int], None]:
    started = time.monotonic()
    last = [0.0]

    def progress(done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - last[0] > 20:
            last[0] = now
            left = (now - started) / done * (total - done)
            print(f"{what}: {done} of {total}, about {left / 60:.0f} min left", file=sys.stderr, flush=True)

    return progress


def main() -> int:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("workloads", nargs="*", help="for example v5e:4x4:480:21; all eighteen by default")
    parser.add_argument("--top", type=int, default=0, help="only the best N by stage 1 (0: every sharding)")
    parser.add_argument("--code", type=int, default=0, help="code generation for a sample of N")
    parser.add_argument("--attention", choices=ATTENTION_KINDS, help="only this attention kind")
    options = parser.parse_args()
    store = AnswerStore(options.store)
    for name in options.workloads or [f"{w.slice}:{w.height}:{w.frames}" for w in all_workloads()]:
        slice_name, height, frames = name.rsplit(":", 2)
        workload = Workload(slice_name, int(height), int(frames))
        ranked = [candidate for _, candidate in stage_1(workload, store, _report(f"{workload.name}, stage 1"))]
        if options.attention:
            ranked = [candidate for candidate in ranked if candidate["attention"] == options.attention]
        wanted = ranked[: options.top] if options.top else ranked
        answers = ask(workload, store, [job(c, "passes") for c in wanted], _report(f"{workload.name}, HLO passes"))
        if options.code:
            fitting = [c for c, answer in zip(wanted, answers, strict=True) if answer["outcome"] == "ok"]
            chosen = sample(workload, fitting, options.code)
            ask(workload, store, [job(c, "code") for c in chosen], _report(f"{workload.name}, code generation"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
