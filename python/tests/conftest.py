import os
from pathlib import Path

import pytest

# The TPU compiler without a TPU: no cloud metadata is asked, several processes may load libtpu, jax runs on the CPU.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


@pytest.fixture(scope="session")
def data() -> Path:
    """The recorded programs and arrays of tests/data."""
    return Path(__file__).resolve().parents[2] / "tests" / "data"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the plan cache of the person who runs it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
