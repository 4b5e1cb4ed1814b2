"""How well the two stages order shardings and placements (paper, section 6.4 and Table 3), against the simulation.

For each workload: every stored sharding is priced under every distinct placement (Q2) and the same pairs are simulated
link by link. The simulation is the order that everything is held against. It shares with the planner the reader of the
HLO and the times of compute; it does not share the costs of collectives, their overlap or their contention.
Spearman's rank correlation is computed inside one workload and averaged over the workloads of a group, never pooled.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sqlite3
import statistics
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from aoizora import _core
from aoizora.compiler.store import AnswerStore, StoredQueue
from aoizora.evaluation import sweep
from aoizora.evaluation.cycles import known_cycles, lend
from aoizora.evaluation.sweep import Workload

KEPT_FRACTION, KEPT_FLOOR = 0.15, 12  # of the planner (docs/plan-format.md); the paper keeps 15 %
SPREAD = 0.01  # placements that spread by more are ordered on their own
_DERIVED_FORMAT = 2  # of the values kept in a store
COMPLETE = 0.95  # of the candidates must be answered before a pool counts as whole

# simulate(text, workload, candidate, devices of each placement, rung) -> seconds of a step and of a block, a placement
Simulate = Callable[[str, Workload, dict[str, Any], list[list[int]], str], list[tuple[float, float]]]
Progress = Callable[[str, int, int], None]


def _quiet(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Placed:
    """One sharding under one placement."""

    order: str
    devices: tuple[int, ...]
    block_seconds: float
    step_seconds: float
    simulated_seconds: float | None = None  # of a step
    simulated_block_seconds: float | None = None


@dataclass(frozen=True)
class Row:
    """One sharding of a workload; `placed` is empty where it does not fit or was refused."""

    candidate: dict[str, Any]
    signature: str
    q1_seconds: float
    rank: int  # by Q1, from 0
    outcome: str  # "ok", "out_of_memory", "refused", "over_budget", "missing"
    propagate_seconds: float = 0.0
    compile_seconds: float = 0.0
    hbm_bytes: float = 0.0
    lent: float = 0.0  # share of the fusions that got cycles of another program
    unhidden_seconds: float = math.inf  # Q1, or the bound on Q2 at full depth where that is more
    placed: tuple[Placed, ...] = ()

    @property
    def best(self) -> Placed:
        """By Q2; the first of equals, as the planner takes it."""
        return min(self.placed, key=lambda p: p.block_seconds)

    @property
    def simulated_best(self) -> float:
        """Seconds of its best placement under the simulation."""
        return min(p.simulated_seconds for p in self.placed if p.simulated_seconds is not None)

    @property
    def spread(self) -> float:
        """Worst over best placement under the simulation, less one."""
        times = [p.simulated_seconds for p in self.placed if p.simulated_seconds is not None]
        return max(times) / min(times) - 1 if times else 0.0


@dataclass(frozen=True)
class Pool:
    """What is stored of one workload."""

    workload: Workload
    rows: tuple[Row, ...]  # in order of Q1
    shardings: int  # logical ones, an attention kind is not another: what K is a fraction of
    of: str  # "all", "gathered": the attention kinds in it
    rung: str = "passes"
    simulated: bool = False

    @property
    def kept(self) -> int:
        """K of the pruning."""
        return min(max(math.ceil(KEPT_FRACTION * self.shardings), KEPT_FLOOR), len(self.rows))

    @property
    def answered(self) -> int:
        """Shardings the compiler was asked for."""
        return sum(row.outcome != "missing" for row in self.rows)

    @property
    def whole(self) -> bool:
        """Whether almost every candidate was asked for."""
        return self.answered >= COMPLETE * len(self.rows)

    @property
    def fitting(self) -> list[Row]:
        """Shardings with priced placements, in order of Q1."""
        return [row for row in self.rows if row.placed]

    def only(self, attention: str) -> Pool:
        """The pool of a planner that knows one attention kind alone."""
        rows = [row for row in self.rows if row.candidate["attention"] == attention]
        ranked = tuple(_with(row, rank=rank) for rank, row in enumerate(rows))
        return Pool(self.workload, ranked, self.shardings, attention, self.rung, self.simulated)


def _with(row: Row, **changes: Any) -> Row:
    return Row(**{**row.__dict__, **changes})


# --- pricing ----------------------------------------------------------------------------------------------------------


class Pricer:
    """Prices and simulates stored answers; what was computed stays in the answers' file, under the library's digest."""

    def __init__(self, path: Path, workers: int = 2) -> None:
        self.path = path
        self.store = AnswerStore(path)
        self._rows = sqlite3.connect(path, timeout=120.0, isolation_level=None)
        self._rows.execute("create table if not exists derived (key text primary key, value blob) without rowid")
        self._workers = workers
        self._queues: dict[str, StoredQueue] = {}

    def close(self) -> None:
        """Closes the file."""
        self._rows.close()
        self.store.close()

    def code_seconds(self, workload: Workload, candidate: dict[str, Any]) -> float | None:
        """What code generation took; None where it is not stored."""
        row = self._rows.execute(
            "select seconds from answers where key = ? and outcome = 'ok'", (self.key(workload, candidate, "code"),)
        ).fetchone()
        return None if row is None else float(row[0])

    def key(self, workload: Workload, candidate: dict[str, Any], rung: str, layers: int = sweep.PROXY_LAYERS) -> str:
        """The name of an answer in the store."""
        if workload.name not in self._queues:
            self._queues[workload.name] = workload.queue(self.store)
        return self._queues[workload.name].key({**sweep.job(candidate, rung), "layers": layers})

    def kept(self, name: str) -> Any:
        """A value kept under a name; None where there is none."""
        row = self._rows.execute("select value from derived where key = ?", (name,)).fetchone()
        return None if row is None else json.loads(zlib.decompress(row[0]))

    def keep(self, name: str, value: Any) -> None:
        """Keeps a value under a name."""
        packed = zlib.compress(json.dumps(value).encode(), 6)
        self._rows.execute("insert or replace into derived values (?, ?)", (name, packed))

    def derive(
        self, jobs: Iterable[tuple[str, str, Callable[[dict[str, Any]], Any]]], what: str, progress: Progress = _quiet
    ) -> list[Any]:
        """A value of each (name, answer key, function of the answer), in order; None where no answer is stored.

        The functions run on several threads: they are expected to leave the interpreter for C++.
        """
        listed = list(jobs)
        values: list[Any] = [None] * len(listed)
        pending: deque[tuple[int, str, Future[Any]]] = deque()
        done = 0

        def settle(left: int) -> None:
            nonlocal done
            while len(pending) > left:
                index, name, future = pending.popleft()
                values[index] = future.result()
                self.keep(name, values[index])
                done += 1
                progress(what, done, len(listed))

        with ThreadPoolExecutor(self._workers) as pool:
            for index, (name, answer_key, function) in enumerate(listed):
                name = hashlib.sha256(
                    f"{_DERIVED_FORMAT}\0{name}\0{answer_key}\0{library_digest()}".encode()
                ).hexdigest()
                kept = self.kept(name)
                if kept is not None:
                    values[index] = kept
                    done += 1
                    continue
                answer = self.store.get(answer_key)
                if answer is None:
                    done += 1
                    continue
                pending.append((index, name, pool.submit(function, answer)))
                settle(3 * self._workers)  # texts are large: few in memory at once
            settle(0)
        return values


@cache
def library_digest() -> str:
    """Of the C++ library: a value computed by another one is not this one's."""
    return hashlib.sha256(Path(str(_core.__file__)).read_bytes()).hexdigest()


def simulation() -> Simulate:
    """The judge: the link-level simulation of the same schedule."""

    def simulate(
        text: str, workload: Workload, candidate: dict[str, Any], devices: list[list[int]], rung: str
    ) -> list[tuple[float, float]]:
        times = _core.simulate_many(
            text, workload.table_json, json.dumps(candidate), workload.slice, devices, workload.layers, rung, 1.0
        )
        return [(float(step), float(block)) for step, block in times]

    return simulate


def price(
    answer: dict[str, Any],
    workload: Workload,
    candidate: dict[str, Any],
    *,
    rung: str = "passes",
    slice_name: str = "",
    rate_scale: float = 1.0,
    simulate: Simulate | None = None,
) -> dict[str, Any]:
    """Q2 of every distinct placement of one answer, simulated where asked: outcome, seconds, hbm_bytes, placements."""
    found: dict[str, Any] = {"outcome": answer["outcome"], "seconds": answer["seconds"]}
    if answer["outcome"] != "ok":
        return found
    text, candidate_json = answer["text"], json.dumps(candidate)
    slice_name = slice_name or workload.slice
    priced = json.loads(
        _core.price(
            text, answer["memory_report"], workload.table_json, candidate_json, slice_name, workload.layers, rung,
            rate_scale,
        )
    )  # fmt: skip
    found.update(hbm_bytes=priced["hbm_bytes"] or 0.0, windowed=priced["windowed"], placements=priced["placements"])
    if priced["hbm_bytes"] and priced["hbm_bytes"] > hbm_budget_bytes(workload.slice):
        return {**found, "outcome": "over_budget", "placements": []}
    if simulate is not None:
        devices = [placement["devices"] for placement in priced["placements"]]
        times = simulate(text, workload, candidate, devices, rung)
        for placement, (step, block) in zip(priced["placements"], times, strict=True):
            placement.update(simulated_seconds=step, simulated_block_seconds=block)
    return found


@cache
def hbm_budget_bytes(slice_name: str) -> float:
    """HBM of one device."""
    return float(json.loads(_core.slice_json(slice_name))["hardware"]["hbm_bytes"]["value"])


@cache
def shardings(workload: Workload) -> int:
    """Logical shardings that fit by the estimate: what the planner's K is a fraction of."""
    options = json.dumps({"hbm_budget_bytes": int(hbm_budget_bytes(workload.slice))})
    return int(json.loads(_core.enumerate(workload.table_json, workload.slice, options))["fitting"])


@dataclass(frozen=True)
class Scored:
    """A sharding after stage 1."""

    q1_seconds: float
    signature: str
    candidate: dict[str, Any]
    propagate_seconds: float  # tracing, lowering and Shardy
    unhidden_seconds: float  # Q1, or the bound on Q2 at full depth where that is more


def stage_1(pricer: Pricer, workload: Workload, progress: Progress = _quiet) -> list[Scored]:
    """Every sharding whose propagated program is stored, by Q1, as the planner sorts them."""

    def q1(candidate: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
        def run(answer: dict[str, Any]) -> Any:
            if answer["outcome"] != "ok":
                return [None, answer["seconds"]]
            text = _core.predict(
                answer["text"], workload.table_json, json.dumps(candidate), workload.slice, workload.layers
            )
            seconds = float(json.loads(text)["q1"]["seconds"])
            block = _core.block_bound(answer["text"], workload.table_json, json.dumps(candidate), workload.slice)[0]
            return [seconds, answer["seconds"], max(seconds, workload.layers * block)]

        return run

    candidates = workload.candidates
    jobs = [(f"stage 1 {workload.name}", pricer.key(workload, c, "propagate"), q1(c)) for c in candidates]
    values = pricer.derive(jobs, f"{workload.name}, Q1", progress)
    scored = [
        Scored(value[0], sweep.signature(workload, candidate), candidate, value[1], value[2])
        for value, candidate in zip(values, candidates, strict=True)
        if value is not None and value[0] is not None
    ]
    return sorted(scored, key=lambda entry: (entry.q1_seconds, entry.signature))


def load(
    pricer: Pricer,
    workload: Workload,
    *,
    simulate: Simulate | None = None,
    rung: str = "passes",
    layers: int = sweep.PROXY_LAYERS,
    slice_name: str = "",
    known: dict[str, int] | None = None,
    limit: int | None = None,
    progress: Progress = _quiet,
) -> Pool:
    """Everything stored of a workload, priced. `slice_name`: a descriptor to price by; `known`: cycles to lend;
    `limit`: only the first by Q1."""
    scored = stage_1(pricer, workload, progress)[:limit]
    variant = f"price {workload.name} {rung} {layers} {_content(slice_name)} {simulate is not None}"
    if known is not None:
        variant += hashlib.sha256(json.dumps(sorted(known.items())).encode()).hexdigest()

    def priced(candidate: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
        def run(answer: dict[str, Any]) -> Any:
            used = rung
            share = None
            if known is not None and answer["outcome"] == "ok":
                text, coverage = lend(answer["text"], known)
                answer, used, share = {**answer, "text": text}, "code", coverage.share
            found = price(answer, workload, candidate, rung=used, slice_name=slice_name, simulate=simulate)
            return found if share is None else {**found, "lent": share}

        return run

    jobs = [(variant, pricer.key(workload, s.candidate, rung, layers), priced(s.candidate)) for s in scored]
    rows = []
    values = pricer.derive(jobs, f"{workload.name}, prices", progress)
    for rank, (entry, found) in enumerate(zip(scored, values, strict=True)):
        row = Row(
            entry.candidate,
            entry.signature,
            entry.q1_seconds,
            rank,
            "missing",
            entry.propagate_seconds,
            unhidden_seconds=entry.unhidden_seconds,
        )
        if found is None:
            rows.append(row)
            continue
        placed = tuple(
            Placed(
                p["order"],
                tuple(p["devices"]),
                p["block_seconds"],
                p["step_seconds"],
                p.get("simulated_seconds"),
                p.get("simulated_block_seconds"),
            )
            for p in found.get("placements", ())
        )
        rows.append(
            _with(
                row,
                outcome=found["outcome"],
                compile_seconds=found["seconds"],
                hbm_bytes=found.get("hbm_bytes", 0.0),
                lent=found.get("lent", 0.0),
                placed=placed,
            )
        )
    return Pool(workload, tuple(rows), shardings(workload), "all", rung, simulate is not None)


def _content(slice_name: str) -> str:
    path = Path(slice_name)
    return path.read_text(encoding="utf-8") if slice_name and path.is_file() else slice_name


def code_cycles(pricer: Pricer, workloads: Iterable[Workload]) -> tuple[dict[str, int], int]:
    """Cycles of every fusion in the code-generated programs that are stored, and how many programs there are."""
    texts = []
    for workload in workloads:
        for candidate in workload.candidates:
            answer = pricer.store.get(pricer.key(workload, candidate, "code"))
            if answer is not None and answer["outcome"] == "ok":
                texts.append(answer["text"])
    return known_cycles(texts), len(texts)


# --- statistics -------------------------------------------------------------------------------------------------------


def rounded(values: Iterable[float]) -> list[float]:
    """To nine digits: what differs by the last bits of a sum alone is equal."""
    return [float(f"{value:.9g}") for value in values]


def spearman(predicted: Sequence[float], reference: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equals sharing their mean rank. None for fewer than two values or a reference that
    orders nothing; 0 for a prediction that orders nothing."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    a, b = rankdata(rounded(predicted)), rankdata(rounded(reference))
    if len(b) < 2 or b.min() == b.max():
        return None
    if a.min() == a.max():
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b) / math.sqrt((a @ a) * (b @ b)))


@dataclass(frozen=True)
class Plan:
    """The pair that a planner over a pool picks: least Q2 of a block among the fitting survivors, ties by signature."""

    row: Row
    placed: Placed


def plan_of(pool: Pool) -> Plan | None:
    """As Algorithm 1 by HLO passes: K survivors by Q1 and the floor by what cannot be hidden. Survivors that do not fit
    are replaced by the next batch in line."""
    known = sorted(row.unhidden_seconds for row in pool.rows if row.unhidden_seconds < math.inf)[:KEPT_FLOOR]
    unhidden = [row for row in pool.rows if row.unhidden_seconds in known]
    for start in range(0, len(pool.rows), max(pool.kept, 1)):
        batch = pool.rows[start : start + pool.kept]
        survivors = [row for row in (*batch, *unhidden) if row.placed]
        if survivors:
            row = min(survivors, key=lambda r: (r.best.block_seconds, r.signature))
            return Plan(row, row.best)
    return None


@dataclass(frozen=True)
class Fidelity:
    """The numbers of one workload."""

    workload: Workload
    of: str
    shardings: int
    answered: int
    fitting: int
    pairs: int
    q1: float | None  # Spearman of Q1 with a sharding's best placement
    q2: float | None  # Spearman of Q2 over pairs
    kept: int
    best_rank: int  # by Q1, of the sharding the simulation likes best; from 0
    regret: float  # of the plan under the simulation
    alone: tuple[float, ...] = field(default=())  # Spearman over placements alone, one a sharding that spreads

    @property
    def top_1_kept(self) -> bool:
        """Whether the best sharding survives the pruning."""
        return self.best_rank < self.kept


def fidelity(pool: Pool) -> Fidelity | None:
    """Of a simulated pool; None where nothing fits."""
    fitting = pool.fitting
    plan = plan_of(pool)
    if not fitting or plan is None or not pool.simulated or plan.placed.simulated_seconds is None:
        return None
    pairs = [placed for row in fitting for placed in row.placed]
    best = min(fitting, key=lambda row: (row.simulated_best, row.rank))
    return Fidelity(
        pool.workload,
        pool.of,
        len(pool.rows),
        pool.answered,
        len(fitting),
        len(pairs),
        spearman([row.q1_seconds for row in fitting], [row.simulated_best for row in fitting]),
        spearman([p.step_seconds for p in pairs], [p.simulated_seconds or 0.0 for p in pairs]),
        pool.kept,
        best.rank,
        plan.placed.simulated_seconds / best.simulated_best - 1,
        tuple(value for row in fitting if (value := placements_alone(row)) is not None),
    )


def placements_alone(row: Row) -> float | None:
    """Spearman of Q2 over the placements of one sharding; None where they spread by less than 1 %."""
    if row.spread <= SPREAD:
        return None
    return spearman([p.step_seconds for p in row.placed], [p.simulated_seconds or 0.0 for p in row.placed])


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    listed = [value for value in values if value is not None]
    return statistics.fmean(listed) if listed else None


def groups(found: Iterable[Fidelity]) -> Iterator[tuple[str, int, list[Fidelity]]]:
    """Workloads by slice and size, the paper's six rows of Table 3."""
    listed = list(found)
    for slice_name in sweep.SLICES:
        for height in sweep.SIZES:
            yield (
                slice_name,
                height,
                [f for f in listed if f.workload.slice == slice_name and f.workload.height == height],
            )


@dataclass(frozen=True)
class StageOne:
    """The best sharding by Q1 alone (paper, Table 4), under the planner's best and worst placement of it."""

    best_seconds: float
    worst_seconds: float


def stage_1_only(pool: Pool, seconds: Callable[[Placed], float]) -> StageOne | None:
    """Of the first sharding by Q1 that fits."""
    if not pool.fitting:
        return None
    times = [seconds(placed) for placed in pool.fitting[0].placed]
    return StageOne(min(times), max(times))


def spreading_sample(pools: Iterable[Pool], count: int = 20, seed: int = 20) -> list[tuple[Pool, Row]]:
    """Seeded shardings whose placements spread by more than 1 %: for a judge that is slow."""
    found = [(pool, row) for pool in pools for row in pool.fitting if row.spread > SPREAD]
    found.sort(key=lambda pair: (pair[0].workload.name, pair[1].signature))
    return random.Random(seed).sample(found, min(count, len(found)))


def error_factor(ours: Sequence[float], reference: Sequence[float], scale: float = 1.0) -> float:
    """exp(mean |ln(scale x ours / reference)|) - 1."""
    return math.expm1(statistics.fmean(abs(math.log(scale * a / b)) for a, b in zip(ours, reference, strict=True)))


def common_factor(ours: Sequence[float], reference: Sequence[float]) -> float:
    """The one factor on ours with the least mean |ln|: the median of reference over ours, in logarithms."""
    return math.exp(statistics.median(math.log(b / a) for a, b in zip(ours, reference, strict=True)))


def paper_block_seconds(step_seconds: float, block_seconds: float, layers: int) -> float:
    """A block as the paper's Table 4 has it: (two blocks + entry and exit) / 2."""
    return block_seconds + (step_seconds - layers * block_seconds) / 2
