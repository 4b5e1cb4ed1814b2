"""The plan cache: never a wrong plan, never a lost one."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import aoizora
from aoizora import InvalidRequest, Plan, cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AOIZORA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def key(number: int = 0) -> dict:
    return cache.key_of({"model": "m", "frames": number}, {"name": "v5e:2x2"}, {})


def test_what_is_stored_is_found_again_and_nothing_else(recorded_plan: Plan) -> None:
    cache.store(key(1), recorded_plan)
    found = cache.lookup(key(1))
    assert found is not None
    assert found.data == recorded_plan.data
    assert cache.lookup(key(2)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"request": {"model": "m", "frames": 2}},
        {"slice": {"name": "v5e:2x4"}},
        {"settings": {"verify": 2}},
        {"versions": ["jax=0"]},
        {"environment": {"LIBTPU_INIT_ARGS": "--x"}},
        {"planner": "other"},
    ],
)
def test_everything_that_can_change_the_answer_changes_the_name(change: dict) -> None:
    assert cache.digest_of({**key(), **change}) != cache.digest_of(key())


def test_compiler_flags_of_the_environment_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.digest_of(key())
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_something=1")
    assert cache.digest_of(key()) != before


def test_every_damage_to_an_entry_is_a_miss_and_is_mended(recorded_plan: Plan) -> None:
    path = cache.store(key(), recorded_plan)
    whole = path.read_bytes()
    chance = random.Random(3)

    def signed(body: bytes) -> bytes:
        return json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n" + body + b"\n"

    damages = [signed(b"{}"), signed(b"[]"), signed(b'{"key":1,"plan":2}'), signed(b"[" * 100000)]
    damages += [b"", whole[: len(whole) // 2], whole[:-2], b"\xff" * 100, b"{}\n{}", b"[]\n[]"]
    for _ in range(40):
        at = chance.randrange(len(whole))
        damages.append(whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :])
    for damage in damages:
        path.write_bytes(damage)
        found = cache.lookup(key())
        assert found is None or found.data == recorded_plan.data
        assert len(cache.entries()) == 1
    cache.store(key(), recorded_plan)
    assert path.read_bytes() == whole


def test_an_entry_under_another_ones_name_is_not_taken(recorded_plan: Plan, folder: Path) -> None:
    path = cache.store(key(1), recorded_plan)
    path.rename(folder / f"{cache.digest_of(key(2))}.json")
    assert cache.lookup(key(2)) is None


def test_planners_at_once_leave_whole_entries(recorded_plan: Plan, tmp_path: Path) -> None:
    recorded_plan.save(tmp_path / "plan.json")
    program = (
        "import sys\nfrom aoizora import Plan, cache\nplan = Plan.load(sys.argv[1])\n"
        "for number in range(40):\n"
        "    cache.store(cache.key_of({'model': 'm', 'frames': number % 5}, {'name': 'v5e:2x2'}, {}), plan)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "plan.json")]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [entry.problem for entry in cache.entries()] == [""] * 5


def test_a_kill_at_any_moment_leaves_the_entry_whole(recorded_plan: Plan, folder: Path, tmp_path: Path) -> None:
    recorded_plan.save(tmp_path / "plan.json")
    program = (
        "import sys\nfrom aoizora import Plan, cache\nplan = Plan.load(sys.argv[1])\n"
        "key = cache.key_of({'model': 'm', 'frames': 0}, {'name': 'v5e:2x2'}, {})\nprint('ready', flush=True)\n"
        "while True: cache.store(key, plan)\n"
    )
    chance = random.Random(5)
    for _ in range(12):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "plan.json")], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.001, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        entries = cache.entries()
        assert [entry.problem for entry in entries] in ([], [""])
    for part in folder.glob(".*.tmp"):
        os.utime(part, (0, 0))
    cache.store(key(), recorded_plan)
    assert not list(folder.glob(".*.tmp"))


def test_find_and_clear(recorded_plan: Plan) -> None:
    cache.store(key(1), recorded_plan)
    cache.store(key(2), recorded_plan)
    assert cache.find(cache.digest_of(key(1))[:10]).plan is not None
    with pytest.raises(InvalidRequest, match="2 cached plans"):
        cache.find("")
    with pytest.raises(InvalidRequest, match="no cached plan"):
        cache.find("zzz")
    assert cache.clear() == 2
    assert cache.entries() == []


def test_a_folder_that_cannot_be_made_is_named(recorded_plan: Plan, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AOIZORA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(InvalidRequest, match="AOIZORA_CACHE_DIR"):
        cache.store(key(), recorded_plan)


def test_a_plan_is_not_lost_where_the_cache_cannot_keep_it(
    recorded_plan: Plan, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """A folder that cannot be used is refused before the compiler is asked; a disk that fills later costs no plan."""
    import contextlib

    from aoizora import _core
    from aoizora.compiler import store

    asked = []

    @contextlib.contextmanager
    def no_queue(*_: object) -> Iterator[None]:
        asked.append(1)
        yield

    monkeypatch.setattr(store, "open_queue", no_queue)
    monkeypatch.setattr(_core, "plan", lambda *_: recorded_plan.dumps())
    folder.write_text("no folder")
    with pytest.raises(InvalidRequest, match="AOIZORA_CACHE_DIR"):
        aoizora.plan()
    assert not asked
    folder.unlink()

    def full(*_: object) -> None:
        raise InvalidRequest("no space left")

    monkeypatch.setattr(cache, "store", full)
    with pytest.warns(UserWarning, match="not cached: no space left"):
        plan = aoizora.plan()
    assert plan.data == recorded_plan.data
    assert asked


def test_versions_are_those_of_the_installed_packages() -> None:
    for name in ("jax", "jaxlib", "libtpu", "numpy"):
        assert cache.version_of(name) == metadata.version(name)
    assert cache.version_of("no_such_package") == "missing"


def test_a_hit_imports_no_jax(recorded_plan: Plan, tmp_path: Path) -> None:
    """What was planned before is there without jax or another process; bench/cache_hit.py times it."""
    from aoizora import _core

    request = json.loads(_core.request_json(json.dumps({"model": "wan2.1-1.3b"})))
    settings = json.loads(
        _core.settings_json(json.dumps({"survivor_floor": 8, "survivor_fraction": 0.05, "runners_up": 5}))
    )
    slice_ = json.loads(_core.slice_json("v5e:2x2"))
    cache.store(cache.key_of(request, slice_, settings), recorded_plan)
    program = (
        "import sys, json, aoizora\n"
        "p = aoizora.plan('wan2.1-1.3b', (480, 832), 21, 'v5e:2x2',"
        " settings={'survivor_floor': 8, 'survivor_fraction': 0.05, 'runners_up': 5})\n"
        "loaded = sorted(m for m in sys.modules if m.startswith(('jax', 'numpy')))\n"
        "print(json.dumps([p.data['best']['sharding'], loaded]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    sharding, loaded = json.loads(done.stdout)
    assert sharding == recorded_plan.data["best"]["sharding"]
    assert loaded == []
