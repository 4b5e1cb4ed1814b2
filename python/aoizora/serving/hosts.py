"""One plan on all hosts: process 0 resolves it, the others receive it and check that it came whole."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from aoizora import errors
from aoizora.errors import CompilerFailed, Error
from aoizora.plan_file import Plan

# Process 0 may plan for many minutes before the others hear of it.
_TIMEOUT_SECONDS = 3 * 3600
_ASK_SECONDS = 60
_CHUNK_BYTES = 1 << 20

_attempts: Counter[str] = Counter()
_lock = threading.Lock()


def shared(name: str, resolve: Callable[[], Plan]) -> Plan:
    """`resolve()` where there is one process; else what process 0 resolves, or its error, on every process.

    name: says which request this is, the same on every process; each must ask for it equally often.
    """
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized() or jax.process_count() == 1:
        return resolve()
    with _lock:
        _attempts[name] += 1
        key = f"aoizora/plan/{hashlib.sha256(name.encode()).hexdigest()[:16]}/{_attempts[name]}"
    from aoizora.compiler.private import process_store

    store = process_store()
    return _give(store, key, resolve) if jax.process_index() == 0 else _receive(store, key)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _give(store: Any, key: str, resolve: Callable[[], Plan]) -> Plan:
    try:
        plan = resolve()
    except BaseException as error:
        said = {"error": type(error).__name__, "message": str(error)}
        store.key_value_set(f"{key}/head", json.dumps(said))
        raise
    text = plan.dumps()
    packed = zlib.compress(text.encode())
    pieces = [packed[at : at + _CHUNK_BYTES] for at in range(0, len(packed), _CHUNK_BYTES)]
    for number, piece in enumerate(pieces):
        store.key_value_set_bytes(f"{key}/{number}", piece)
    store.key_value_set(f"{key}/head", json.dumps({"pieces": len(pieces), "sha256": digest(text)}))
    return plan


def _receive(store: Any, key: str) -> Plan:
    head = json.loads(_wait(store, f"{key}/head"))
    if "error" in head:
        kind = getattr(errors, head["error"], CompilerFailed)
        known = kind if isinstance(kind, type) and issubclass(kind, Error) else CompilerFailed
        raise known(f"process 0 found no plan: {head['message']}")
    packed = b"".join(
        store.blocking_key_value_get_bytes(f"{key}/{number}", _ASK_SECONDS * 1000) for number in range(head["pieces"])
    )
    try:
        text = zlib.decompress(packed).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise CompilerFailed(f"the plan of process 0 came damaged: {error}") from None
    if digest(text) != head["sha256"]:
        raise CompilerFailed(
            f"the plan of process 0 came damaged: its digest is {head['sha256'][:16]}, not {digest(text)[:16]}"
        )
    return Plan.loads(text)


def _wait(store: Any, key: str) -> str:
    """Asks again and again, so that an interrupt is heard while process 0 plans."""
    for _ in range(_TIMEOUT_SECONDS // _ASK_SECONDS):
        try:
            value: str = store.blocking_key_value_get(key, _ASK_SECONDS * 1000)
        except Exception as error:  # jaxlib's XlaRuntimeError
            if "DEADLINE_EXCEEDED" in str(error):
                continue
            raise CompilerFailed(f"process 0 is gone before it had a plan: {error}") from None
        return value
    raise CompilerFailed(f"process 0 had no plan after {_TIMEOUT_SECONDS // 3600} hours")
