"""The memory of cycles: many processes, kills, damaged files, other compilers."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from aoizora.cycle_memory import CycleMemory

VERSIONS = ["jax=1", "libtpu=2"]


def test_remembers_for_its_own_compiler_and_devices_only(tmp_path: Path) -> None:
    path = tmp_path / "cycles.sqlite"
    one = CycleMemory(path, VERSIONS, "v5e")
    one.remember({"a": 5, "b": -1})
    assert one.lookup(["a", "b", "c"]) == {"a": 5, "b": -1}
    other = CycleMemory(path, ["jax=1", "libtpu=3"], "v5e")
    assert other.lookup(["a", "b"]) == {}
    other.remember({"a": 7})
    assert CycleMemory(path, VERSIONS, "v6e").lookup(["a"]) == {}
    assert CycleMemory(path, VERSIONS, "v5e").lookup(["a"]) == {"a": 5}


def test_what_was_remembered_first_stays(tmp_path: Path) -> None:
    memory = CycleMemory(tmp_path / "cycles.sqlite", VERSIONS, "v5e")
    memory.remember({"a": 5})
    memory.remember({"a": 6, "b": 1})
    assert memory.lookup(["a", "b"]) == {"a": 5, "b": 1}


def test_many_fingerprints_at_once(tmp_path: Path) -> None:
    memory = CycleMemory(tmp_path / "cycles.sqlite", VERSIONS, "v5e")
    known = {f"{i:032x}": i for i in range(3000)}
    memory.remember(known)
    assert memory.lookup(list(known)) == known


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=4096))
def test_a_damaged_file_is_set_aside(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cycles.sqlite"
        path.write_bytes(content)
        memory = CycleMemory(path, VERSIONS, "v5e")
        memory.remember({"a": 5})
        assert memory.lookup(["a"]) == {"a": 5}
        aside = list(Path(folder).glob("cycles.sqlite.damaged-*"))
        assert all(file.read_bytes() == content for file in aside)
        memory.close()


def test_a_table_of_another_kind_is_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "cycles.sqlite"
    database = sqlite3.connect(path)
    database.execute("create table cycles (other text)")
    database.commit()
    database.close()
    memory = CycleMemory(path, VERSIONS, "v5e")
    memory.remember({"a": 5})
    assert memory.lookup(["a"]) == {}


def test_where_no_file_can_be_nothing_is_remembered(tmp_path: Path) -> None:
    memory = CycleMemory(tmp_path / "missing" / "cycles.sqlite", VERSIONS, "v5e")
    memory.remember({"a": 5})
    assert memory.lookup(["a"]) == {}
    memory.close()


def test_a_changed_number_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "cycles.sqlite"
    memory = CycleMemory(path, VERSIONS, "v5e")
    memory.remember({"a": 5, "b": 6})
    memory.close()
    database = sqlite3.connect(path)
    database.execute("update cycles set cycles = 50 where fingerprint = 'a'")
    database.execute("update cycles set cycles = 'six' where fingerprint = 'b'")
    database.commit()
    database.close()
    assert CycleMemory(path, VERSIONS, "v5e").lookup(["a", "b"]) == {}


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from aoizora.cycle_memory import CycleMemory

memory = CycleMemory(Path(sys.argv[1]), sys.argv[3:], "v5e")
for i in range(int(sys.argv[2]), int(sys.argv[2]) + 10**6):
    memory.remember({f"{i}": i, f"{i} again": i})
"""


def test_writers_killed_at_any_moment_leave_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "cycles.sqlite"
    CycleMemory(path, VERSIONS, "v5e").close()
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(path)]
    writers = [subprocess.Popen([*command, str(10**7 * k), *VERSIONS]) for k in range(3)]
    deadline = time.monotonic() + 60
    database = sqlite3.connect(path, timeout=30)
    while database.execute("select count(*) from cycles").fetchone()[0] < 100 and time.monotonic() < deadline:
        time.sleep(0.05)
    for writer in writers:
        writer.kill()
        writer.wait()
    rows = dict(sqlite3.connect(path, timeout=30).execute("select fingerprint, cycles from cycles").fetchall())
    assert len(rows) >= 100
    for name, number in rows.items():
        assert number == int(name.split()[0])
        assert {f"{number}", f"{number} again"} <= rows.keys()
    memory = CycleMemory(path, VERSIONS, "v5e")
    memory.remember({"after": 1})
    assert memory.lookup(["after"]) == {"after": 1}
