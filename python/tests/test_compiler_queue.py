"""The compiler queue with the real TPU compiler: every rung answers; what happens to a worker reaches no other."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libtpu")

from aoizora.compiler import queue as compiler_queue
from aoizora.compiler.queue import WorkerQueue
from aoizora.errors import CompilerFailed

HERE = Path(__file__).parent
COORDINATES = [([x, y], 0) for x in range(2) for y in range(4)]
MESH_AXES = ("data", "fsdp", "context", "tensor")


@pytest.fixture(autouse=True)
def _builders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def candidate(*sizes: int, **more: Any) -> dict[str, Any]:
    return {
        "mesh": [{"name": name, "size": size} for name, size in zip(MESH_AXES, sizes or (2, 1, 2, 2), strict=True)],
        "rules": {
            "batch": ["data"],
            "sequence": ["context"],
            "embed": ["context", "fsdp"],
            "heads": ["tensor"],
            "mlp": ["tensor"],
        },
        "compiler_options": {},
        **more,
    }


def job(id: int, rung: str = "propagate", of: dict[str, Any] | None = None, **more: Any) -> str:
    fields = {"priority": 0, "layers": 3, "placement": None, "own_process": False}
    return json.dumps({"id": id, "candidate": of or candidate(), "rung": rung, **fields, **more})


def open_queue(
    workers: int = 2, builder: str = "block", request: dict[str, Any] | None = None, **more: Any
) -> WorkerQueue:
    return WorkerQueue(request or {}, "v5e:2x4", COORDINATES, workers, builder=f"compiler_builders:{builder}", **more)


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerQueue]:
    """One queue for the tests that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        with open_queue() as queue:
            yield queue


def answers(queue: WorkerQueue, *jobs: str) -> dict[int, dict[str, Any]]:
    for one in jobs:
        queue.submit(one)
    return {answer["id"]: answer for answer in (queue.next() for _ in jobs)}


def processes_naming(text: str) -> list[int]:
    """Live processes with the text on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                alive = "\nState:\tZ" not in (entry / "status").read_text()
                if alive and text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def test_each_rung_answers_with_its_own_text(shared: WorkerQueue) -> None:
    got = answers(shared, job(1, "propagate"), job(2, "passes"), job(3, "code"))
    assert [got[id]["outcome"] for id in (1, 2, 3)] == ["ok"] * 3, got
    assert all(not answer["failure"] and answer["seconds"] > 0 for answer in got.values())
    assert '"builtin.module"' in got[1]["text"]
    assert "stablehlo.dot_general" in got[1]["text"]
    assert "sdy.sharding_per_value" in got[1]["text"]
    assert got[1]["memory_report"] == ""
    for id in (2, 3):
        assert got[id]["text"].startswith("HloModule")
        assert "num_partitions=8" in got[id]["text"]
        assert "Total bytes" in got[id]["memory_report"]
    # Cycles exist only after code generation.
    assert "estimated_cycles" not in got[2]["text"]
    assert "estimated_cycles" in got[3]["text"]
    # Code generation neither adds nor removes an instruction.
    names = [re.findall(r"^\s+(?:ROOT )?%([\w.-]+) =", got[id]["text"], re.MULTILINE) for id in (2, 3)]
    assert names[0] == names[1]


def test_explicit_reshards_are_given_on_demand(shared: WorkerQueue) -> None:
    got = answers(shared, job(1), job(2, reshard=True))
    # Sharding constraints are reshards in both; the contractions' own come with the explicit ones.
    reshards = [got[id]["text"].count('"sdy.reshard"') for id in (1, 2)]
    assert reshards[0] < reshards[1]
    assert '"sdy.all_reduce"' not in got[1]["text"]
    assert '"sdy.all_reduce"' in got[2]["text"]


def test_texts_name_no_file_of_this_machine(shared: WorkerQueue) -> None:
    got = answers(shared, job(1, "propagate"), job(2, "passes"))
    assert "compiler_builders" not in got[1]["text"] + got[2]["text"]


def test_an_option_the_compiler_does_not_know_is_refused_by_name(shared: WorkerQueue) -> None:
    (answer,) = answers(shared, job(1, "passes", candidate(compiler_options={"xla_no_such_option": "1"}))).values()
    assert answer["outcome"] == "refused"
    assert "xla_no_such_option" in answer["failure"]


@pytest.mark.slow
def test_compiler_options_of_a_candidate_reach_the_compiler() -> None:
    # Windowed einsum turns gathers of large weights into loops of permutes; this is the option that turns it off.
    off = {"compiler_options": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}}
    wan = {"hidden": 5120, "heads": 40, "tokens": 8192, "text": 512, "mlp": 13824}
    with open_queue(request=wan) as queue:
        got = answers(queue, job(1, "passes", candidate(1, 1, 8, 1)), job(2, "passes", candidate(1, 1, 8, 1, **off)))
    assert "collective-permute" in got[1]["text"]
    assert "collective-permute" not in got[2]["text"]
    assert got[2]["text"].startswith("HloModule")


def test_number_of_layers_is_the_loop_bound(shared: WorkerQueue) -> None:
    got = answers(shared, job(1, layers=3), job(2, layers=5))
    assert "tensor<3x256x256xbf16>" in got[1]["text"]
    assert "tensor<5x256x256xbf16>" in got[2]["text"]


@pytest.mark.parametrize(
    ("misbehave", "outcome", "says"),
    [
        ("raise", "refused", "heads 40 do not divide by 3"),
        ("abort", "crashed", "SIGABRT.*limited ICI routing"),
        ("exit", "crashed", "exit status 7"),
        ("kill", "crashed", "SIGKILL"),
    ],
)
@pytest.mark.parametrize("rung", ["propagate", "passes"])
def test_a_bad_candidate_costs_itself_only(
    shared: WorkerQueue, misbehave: str, outcome: str, says: str, rung: str
) -> None:
    got = answers(shared, job(1, rung, candidate(misbehave=misbehave)), job(2), job(3))
    assert got[1]["outcome"] == outcome
    assert re.search(says, got[1]["failure"], re.DOTALL)
    assert got[1]["text"] == ""
    assert got[2]["outcome"] == got[3]["outcome"] == "ok"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"of": candidate(2, 1, 2, 1)}, "does not have the slice's 8 devices"),
        ({"placement": [0, 0, 2, 3, 4, 5, 6, 7]}, "does not name each of the 8 devices once"),
        ({"of": {"rules": {}}}, "mesh"),
    ],
)
def test_a_malformed_candidate_is_refused(shared: WorkerQueue, change: dict[str, Any], says: str) -> None:
    (answer,) = answers(shared, job(1, **change)).values()
    assert answer["outcome"] == "refused"
    assert says in answer["failure"]


@pytest.mark.parametrize(
    "bad", ["[]", "{}", '{"id": 1, "candidate": {}, "rung": "guess"}', '{"id": 1, "rung": "code"}', "{"]
)
def test_a_malformed_job_is_not_taken(shared: WorkerQueue, bad: str) -> None:
    with pytest.raises(ValueError, match=r"job|Expecting"):
        shared.submit(bad)


def test_next_with_an_empty_queue_does_not_wait_for_ever(shared: WorkerQueue) -> None:
    with pytest.raises(ValueError, match="no job"):
        shared.next()


def test_overflow_of_hbm_is_told_from_other_refusals() -> None:
    of = candidate(kind="psum", over=["data"], rows=1 << 26)
    with open_queue(builder="collective") as queue:
        got = answers(queue, job(1, "passes", of), job(2, "code", of))
    for answer in got.values():
        assert answer["outcome"] == "out_of_memory"
        assert "exceeds available HBM" in answer["failure"] or "Ran out of memory" in answer["failure"]


def test_jobs_start_by_priority_then_id() -> None:
    with open_queue(workers=1) as queue:
        order = [(5, 2.0), (4, 1.0), (3, 1.0), (2, 0.5), (1, 3.0)]
        for id, priority in order:
            queue.submit(job(id, priority=priority))
        got = [queue.next()["id"] for _ in order]
    # All were submitted while jax was still being imported.
    assert got == [2, 3, 4, 5, 1]


@pytest.mark.timed
def test_a_job_too_slow_is_ended_with_all_it_started() -> None:
    with open_queue(propagate_timeout_seconds=5) as queue:
        got = answers(
            queue, job(1, of=candidate(misbehave="sleep")), job(2, of=candidate(misbehave="sleep in child")), job(3)
        )
        assert [got[id]["outcome"] for id in (1, 2, 3)] == ["timed_out", "timed_out", "ok"]
        assert "more than 5 s" in got[1]["failure"]
        # The zygote and the worker of job 3: the child of job 2 is gone with its parent.
        assert len(processes_naming(str(queue._directory))) == 2


def test_a_worker_that_grows_is_ended() -> None:
    with open_queue(worker_memory_bytes=700 << 20) as queue:
        got = answers(queue, job(1, of=candidate(misbehave="allocate")), job(2))
    assert got[1]["outcome"] == "crashed"
    assert "of memory" in got[1]["failure"]
    assert got[2]["outcome"] == "ok"


def test_cancel_drops_what_has_not_started_and_stops_a_compile() -> None:
    with open_queue(workers=1) as queue:
        queue.submit(job(1, "code", candidate(misbehave="sleep")))
        queue.submit(job(2))
        queue.submit(job(3))
        time.sleep(3)
        queue.cancel(2)
        queue.cancel(1)
        queue.cancel(99)
        assert queue.next()["id"] == 3
        with pytest.raises(ValueError, match="no job"):
            queue.next()


def test_a_process_of_its_own_is_used_once() -> None:
    with open_queue(workers=1) as queue:
        (answer,) = answers(queue, job(1, own_process=True)).values()
        assert answer["outcome"] == "ok"
        assert len(processes_naming(str(queue._directory))) == 1  # the zygote
        answers(queue, job(2))
        (kept,) = set(processes_naming(str(queue._directory))) - {queue._process.pid}
        answers(queue, job(3), job(4, own_process=True))
        assert set(processes_naming(str(queue._directory))) == {kept, queue._process.pid}


def test_closing_leaves_no_process_and_no_file() -> None:
    queue = open_queue()
    answers(queue, job(1), job(2, "passes"))
    queue.submit(job(3, of=candidate(misbehave="sleep")))
    time.sleep(1)
    directory = queue._directory
    assert [path.name for path in directory.glob("job-*") if path.name != "job-3"] == []
    assert processes_naming(str(directory))
    queue.close()
    queue.close()
    assert not processes_naming(str(directory))
    assert not directory.exists()
    with pytest.raises(CompilerFailed, match="closed"):
        queue.submit(job(4))


# A planner in a process of its own: it says where its queue works, then waits for an answer that does not come.
PLANNER = f"""
import json, sys
sys.path[:0] = [{str(HERE)!r}]
import test_compiler_queue as t
queue = t.open_queue()
queue.submit(t.job(1))
queue.next()
queue.submit(t.job(1, of=t.candidate(misbehave="sleep")))
queue.submit(t.job(2, "code", of=t.candidate(misbehave="sleep")))
print(queue._directory, flush=True)
try:
    with queue:
        queue.next()
except KeyboardInterrupt:
    print("interrupted", "jax" in sys.modules, flush=True)
"""


@pytest.fixture
def planner() -> Iterator[tuple[subprocess.Popen[str], str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", PLANNER], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout
        directory = process.stdout.readline().strip()
        assert directory
        assert wait_until(lambda: len(processes_naming(directory)) == 3)  # the zygote and two workers
        yield process, directory
        process.kill()


def test_killing_the_planner_leaves_no_process_and_no_file(planner: tuple[subprocess.Popen[str], str]) -> None:
    process, directory = planner
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not processes_naming(directory) and not Path(directory).exists(), 10)


def test_interrupting_the_planner_ends_it_and_its_workers(planner: tuple[subprocess.Popen[str], str]) -> None:
    process, directory = planner
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    # jax was not imported by it: a plan is made in a process that stays small and starts fast.
    assert said == "interrupted False\n"
    assert not processes_naming(directory)
    assert not Path(directory).exists()


def test_killing_the_zygote_ends_the_workers_and_is_told(planner: tuple[subprocess.Popen[str], str]) -> None:
    with open_queue() as queue:
        answers(queue, job(1))
        queue.submit(job(2, of=candidate(misbehave="sleep")))
        directory = str(queue._directory)
        assert wait_until(lambda: len(processes_naming(directory)) == 2)
        os.kill(queue._process.pid, signal.SIGKILL)
        with pytest.raises(CompilerFailed, match="gone"):
            queue.next()
        assert wait_until(lambda: not processes_naming(directory), 5)
    assert not Path(directory).exists()


def test_versions_name_all_three_packages(shared: WorkerQueue) -> None:
    assert [entry.split("=")[0] for entry in shared.versions()] == ["jax", "jaxlib", "libtpu"]
    assert all(re.fullmatch(r"\w+=\d+\.\d+.*", entry) for entry in shared.versions())


def test_missing_libtpu_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib_util().find_spec
    monkeypatch.setattr(importlib_util(), "find_spec", lambda name: None if name == "libtpu" else find_spec(name))
    with pytest.raises(CompilerFailed, match="pip install libtpu"):
        open_queue()


def importlib_util() -> Any:
    import importlib.util

    return importlib.util


@pytest.mark.parametrize(
    ("slice_name", "coordinates", "says"),
    [
        ("v5e:3x4", [([x, y], 0) for x in range(3) for y in range(4)], "v5e:3x4"),
        ("v5e:2x4", [([x, y], 0) for x in range(4) for y in range(2)], "name a slice both know"),
    ],
)
def test_a_slice_the_compiler_does_not_know_ends_the_run(slice_name: str, coordinates: Any, says: str) -> None:
    with WorkerQueue({}, slice_name, coordinates, 1, builder="compiler_builders:block") as queue:
        queue.submit(job(1, "passes"))
        for _ in range(2):
            with pytest.raises(CompilerFailed, match=says):
                queue.next()


def test_a_model_that_does_not_load_ends_the_run() -> None:
    with open_queue(builder="no_such_function") as queue:
        queue.submit(job(1))
        with pytest.raises(CompilerFailed, match="no_such_function"):
            queue.next()


def test_foreign_settings_do_not_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    one = job(1, "passes", candidate(kind="psum", over=["data"]))
    with open_queue(workers=1, builder="collective") as queue:
        (plain,) = answers(queue, one).values()
    for name, value in {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3",
        "JAX_ENABLE_X64": "1",
        "TPU_WORKER_HOSTNAMES": "a,b",
        "LIBTPU_INIT_ARGS": "--no_such_flag",
    }.items():
        monkeypatch.setenv(name, value)
    with open_queue(workers=1, builder="collective") as queue:
        (other,) = answers(queue, one).values()
    assert (other["outcome"], other["text"]) == ("ok", plain["text"])


@pytest.mark.parametrize("rung", ["passes", pytest.param("code", marks=pytest.mark.slow)])
def test_a_compiler_that_does_not_look_for_its_caller_answers_the_same(
    rung: str, shared: WorkerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uncounted,) = answers(shared, job(1, rung)).values()
    monkeypatch.delitem(compiler_queue._ENVIRONMENT, "UNITTEST_ON_FORGE")
    with open_queue(workers=1) as queue:
        (counted,) = answers(queue, job(1, rung)).values()
    kept = ("outcome", "text", "memory_report")
    assert [counted[name] for name in kept] == [uncounted[name] for name in kept]
    assert uncounted["text"].startswith("HloModule")


def test_answers_do_not_depend_on_workers_or_on_what_they_did_before() -> None:
    shapes = [(2, 1, 2, 2), (2, 1, 4, 1), (1, 1, 8, 1), (1, 2, 2, 2)]
    jobs = [job(id, "propagate", candidate(*shape)) for id, shape in enumerate(shapes)]
    jobs.append(job(10, "passes", candidate()))
    with open_queue(workers=1) as queue:
        one = {id: answer["text"] for id, answer in answers(queue, *jobs).items()}
    with open_queue(workers=2) as queue:
        two = {id: answer["text"] for id, answer in answers(queue, *reversed(jobs)).items()}
        again = {id: answer["text"] for id, answer in answers(queue, *jobs).items()}
    assert all(one.values())
    assert one == two == again


@pytest.mark.slow
def test_code_does_not_depend_on_what_the_worker_did_before() -> None:
    shapes = [(2, 1, 2, 2), (2, 1, 4, 1), (1, 2, 2, 2)]
    jobs = [job(id, "code", candidate(*shape)) for id, shape in enumerate(shapes)]
    with open_queue(workers=1) as queue:
        kept = {id: answer["text"] for id, answer in answers(queue, *jobs, job(9)).items() if id < 9}
    alone = [job(id, "code", candidate(*shape), own_process=True) for id, shape in enumerate(shapes)]
    with open_queue(workers=2) as queue:
        fresh = {id: answer["text"] for id, answer in answers(queue, *alone).items()}
    assert all(kept.values())
    assert kept == fresh


def test_memory_of_a_kept_worker_stays_bounded() -> None:
    from aoizora.compiler.processes import held_bytes

    of = candidate(kind="psum", over=["data"])
    with open_queue(workers=1, builder="collective") as queue:
        held = []
        for round in range(3):
            answers(queue, *(job(id, of={**of, "rows": 1 + id + 100 * round}) for id in range(60)))
            (pid,) = set(processes_naming(str(queue._directory))) - {queue._process.pid}
            held.append(held_bytes(pid))
    # The first round warms up; 120 programs more, all different, leave next to nothing.
    assert held[2] - held[0] < 4 << 20, held


def test_a_placement_changes_the_devices_and_nothing_else(shared: WorkerQueue) -> None:
    transposed = [4 * (rank % 2) + rank // 2 for rank in range(8)]
    got = answers(shared, job(1, "passes"), job(2, "passes", placement=transposed))
    assert got[1]["text"] == got[2]["text"]
