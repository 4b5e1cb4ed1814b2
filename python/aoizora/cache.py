"""The plan cache: one file a plan, keyed by all that can change the answer. Imports no jax."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from aoizora.errors import InvalidRequest
from aoizora.plan_file import Plan, write_whole

# Environment that reaches the compiler and can change what it does.
COMPILER_ENVIRONMENT = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
_STALE_SECONDS = 24 * 3600
# What reading an entry may raise, whatever stands in the file.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidRequest)


def folder() -> Path:
    """AOIZORA_CACHE_DIR, or aoizora under XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("AOIZORA_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aoizora"


def versions() -> list[str]:
    """Versions of what decides a plan, "name=version" each."""
    return [f"{name}={version_of(name)}" for name in ("jax", "jaxlib", "libtpu")]


def version_of(name: str) -> str:
    """Version of an installed package, "missing" where there is none; `name` as in its .dist-info folder.

    The folder's own name says it: importlib.metadata says the same, but to import it takes longer than a hit may.
    """
    for place in sys.path:
        try:
            files = os.listdir(place or ".")
        except OSError:
            continue
        for file in sorted(files):
            if file.startswith(f"{name}-") and file.endswith(".dist-info"):
                return file.removeprefix(f"{name}-").removesuffix(".dist-info")
    from importlib import metadata  # eggs, import hooks

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def own_digest() -> str:
    """Digest of the planner's own code: the C++ library and the Python that traces and compiles."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    files = [*package.glob("_core*.so"), *package.glob("models/*.py"), *package.glob("compiler/*.py")]
    for file in sorted(files):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def key_of(request: dict[str, Any], slice_: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """All that can change the answer: request, slice with its numbers, settings, versions, flags, our own code."""
    return {
        "request": request,
        "slice": slice_,
        "settings": settings,
        "versions": versions(),
        "environment": {name: os.environ.get(name, "") for name in COMPILER_ENVIRONMENT},
        "planner": own_digest(),
    }


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest_of(key: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(key).encode()).hexdigest()[:32]


class Entry(NamedTuple):
    """One cached plan, or a file that is none (`plan` is absent, `problem` says why)."""

    name: str
    path: Path
    size_bytes: int
    modified: float
    plan: Plan | None
    problem: str = ""


def lookup(key: dict[str, Any]) -> Plan | None:
    """The cached plan of a key; None where there is none or the entry is damaged."""
    name = digest_of(key)
    path = folder() / f"{name}.json"
    try:
        entry = _read(path)
    except _DAMAGE:
        return None
    return entry[1] if entry[0] == key else None


def make_folder() -> Path:
    """The folder, made where it is not there. Raises InvalidRequest where no plan could be kept in it."""
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(place, os.W_OK) else "no permission to write"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise InvalidRequest(f"no cache folder {place}: {reason}; set AOIZORA_CACHE_DIR or use --no-cache")
    return place


def store(key: dict[str, Any], plan: Plan) -> Path:
    """Keeps a plan. Safe against a kill at any moment and other planners writing the same entry."""
    place = make_folder()
    path = place / f"{digest_of(key)}.json"
    body = _canonical({"key": key, "plan": plan.data})
    write_whole(path, json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest()}) + "\n" + body + "\n")
    _drop_stale(place)
    return path


def _read(path: Path) -> tuple[dict[str, Any], Plan]:
    head, _, body = path.read_text(encoding="utf-8").partition("\n")
    body = body.removesuffix("\n")
    header = json.loads(head)
    if not isinstance(header, dict) or header.get("sha256") != hashlib.sha256(body.encode()).hexdigest():
        raise ValueError("the content does not match its digest")
    content = json.loads(body)
    return content["key"], Plan(content["plan"])


def entries() -> list[Entry]:
    """Everything in the cache, newest first."""
    found = []
    for path in folder().glob("*.json"):
        try:
            status = path.stat()
        except OSError:
            continue
        try:
            plan, problem = _read(path)[1], ""
        except _DAMAGE as error:
            plan, problem = None, f"damaged: {error}"
        found.append(Entry(path.stem, path, status.st_size, status.st_mtime, plan, problem))
    return sorted(found, key=lambda e: (-e.modified, e.name))


def find(prefix: str) -> Entry:
    """The entry whose name starts with `prefix`. Raises InvalidRequest where none or several do."""
    matches = [entry for entry in entries() if entry.name.startswith(prefix)]
    if len(matches) != 1:
        what = "no cached plan" if not matches else f"{len(matches)} cached plans"
        raise InvalidRequest(f'{what} with a name that starts with "{prefix}"; "aoizora cache list" names them all')
    return matches[0]


def clear() -> int:
    """Removes every entry; returns how many there were."""
    count = 0
    for path in [*folder().glob("*.json"), *folder().glob(".*.tmp")]:
        count += path.suffix == ".json"
        path.unlink(missing_ok=True)
    for path in folder().glob("cycles.sqlite*"):  # what the compiler told of fusions (cycle_memory.py)
        path.unlink(missing_ok=True)
    return count


def _drop_stale(place: Path) -> None:
    """Parts that a killed planner left behind."""
    for path in place.glob(".*.tmp"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink(missing_ok=True)
        except OSError:
            continue
