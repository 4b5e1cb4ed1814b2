import fcntl
import functools
import gzip
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aoizora import Plan, _core

sys.path.append(str(Path(__file__).resolve().parents[2]))

from judges.netns import mesh

# The TPU compiler without a TPU: no cloud metadata is asked, several processes may load libtpu, jax runs on the CPU.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


# A shell that runs the tests in the background has SIGINT ignored, and so would every process the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data() -> Path:
    """The recorded programs and arrays of tests/data."""
    return Path(__file__).resolve().parents[2] / "tests" / "data"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the plan cache of the person who runs it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@functools.cache
def _reason_for_no_namespaces() -> str | None:
    return mesh.reason_to_skip()


@pytest.fixture
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Network namespaces belong to the machine: one test at a time has them, whichever process runs it. One that finds
    what a killed run left behind would else remove it under the eyes of the test that waits for it."""
    base = tmp_path_factory.getbasetemp()  # of a worker; beside those of the others
    with (base.parent / "namespaces.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reason = _reason_for_no_namespaces()
        if reason is not None:
            pytest.skip(reason)
        yield


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """Recorded answers of the real compiler: Wan 2.1 1.3B, 480x832, 21 frames, v5e:2x2."""
    folder = tmp_path_factory.mktemp("recording")
    for packed in (data / "recording_wan13b_v5e_2x2").glob("*.txt.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def _replayed(recording: Path) -> str:
    request = json.dumps({"model": "wan2.1-1.3b"})
    settings = json.dumps({"survivor_floor": 8, "survivor_fraction": 0.05, "runners_up": 5})
    return str(_core.replay_plan(str(recording), request, "v5e:2x2", settings, 0, ["jax=recorded"]))


@pytest.fixture(scope="session")
def recorded_text(recording: Path) -> str:
    """The plan.json of that request, by the C++ planner over the recording."""
    return _replayed(recording)


@pytest.fixture
def recorded_plan(recorded_text: str) -> Plan:
    """The same, read."""
    return Plan.loads(recorded_text)


@pytest.fixture(scope="session")
def exchanging_text(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The plan.json of a compiler that refuses gathered keys: Ulysses, with collectives of three kinds."""
    folder = tmp_path_factory.mktemp("exchanging")
    for path in recording.glob("*.txt"):
        with path.open("rb") as file:
            key = json.loads(file.readline())["key"]
        if not (key.startswith("passes") and "placement=row-major" in key and '"gathered"' in key):
            (folder / path.name).symlink_to(path)
    return _replayed(folder)


@pytest.fixture
def exchanging_plan(exchanging_text: str) -> Plan:
    """The same, read."""
    return Plan.loads(exchanging_text)
