"""plan(): from a request to a Plan, through the cache, the C++ planner and the compiler's worker processes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aoizora import _core, cache
from aoizora.errors import InvalidRequest
from aoizora.plan_file import Plan

# progress(stage, done, total, elapsed_seconds, remaining_seconds, best) -> False to stop
Progress = Callable[[str, int, int, float, float, str], "bool | None"]


def plan(
    model: str = "wan2.1-14b",
    size: tuple[int, int] = (480, 832),
    frames: int = 21,
    slice: str = "v5e:4x4",
    *,
    videos: int = 1,
    cfg: bool = True,
    steps: int = 50,
    dtype: str = "bf16",
    reserved_hbm_bytes: int = 0,
    settings: dict[str, Any] | None = None,
    workers: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
    record_folder: str = "",
    store: str | Path | None = None,
) -> Plan:
    """The best sharding and placement of one request on one slice; needs no TPU.

    size: height and width in pixels. slice: "v5e:4x4" or the path of a descriptor file (docs/topology.md).
    settings: of the planner, see docs/plan-format.md; workers: compiler processes, as many as cores by default.
    store: a file that keeps every answer of the compiler, so that what was asked once is not asked again.
    Raises InvalidRequest, Infeasible, CompilerFailed, Interrupted.
    """
    if not isinstance(size, Sequence) or len(size) != 2:
        raise InvalidRequest(f"size is {size!r}; give (height, width) in pixels, for example (480, 832)")
    request = {
        "model": model, "height": size[0], "width": size[1], "frames": frames, "videos": videos, "cfg": cfg,
        "steps": steps, "dtype": dtype, "reserved_hbm_bytes": reserved_hbm_bytes,
    }  # fmt: skip
    request_json = _core.request_json(json.dumps(request))
    slice_json = _core.slice_json(slice)
    settings_json = _core.settings_json(json.dumps(settings or {}))
    key = cache.key_of(json.loads(request_json), json.loads(slice_json), json.loads(settings_json))
    if use_cache:
        cached = cache.lookup(key)
        if cached is not None:
            return cached
    # What cannot be done is refused before any process starts.
    _core.make_workload(request_json)
    if workers is not None and workers < 1:
        raise InvalidRequest(f"workers is {workers}; it must be at least 1")
    if use_cache:
        cache.make_folder()

    from aoizora.compiler.store import open_queue
    from aoizora.cycle_memory import FILE_NAME, CycleMemory

    name = json.loads(slice_json)["name"]
    with open_queue(store, json.loads(request_json), name, _core.slice_devices(slice), workers) as queue:
        memory = CycleMemory(cache.folder() / FILE_NAME, cache.versions()) if use_cache else None
        try:
            text = _core.plan(request_json, slice, settings_json, queue, progress, record_folder, memory)
        finally:
            if memory is not None:
                memory.close()
    result = Plan.loads(text)
    if use_cache and not result.data["lost"]:
        try:
            cache.store(key, result)
        except InvalidRequest as error:  # a full disk must not cost the plan
            warnings.warn(f"the plan is not cached: {error}", stacklevel=2)
    return result
