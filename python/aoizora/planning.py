"""plan(): from a request to a Plan, through the cache, the C++ planner and the compiler's worker processes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoizora import _core, cache
from aoizora.errors import InvalidRequest
from aoizora.plan_file import Plan
from aoizora.serving.request import ALIASES, DTYPES

if TYPE_CHECKING:
    from aoizora.cycle_memory import CycleMemory

# progress(stage, done, total, elapsed_seconds, remaining_seconds, best) -> False to stop
Progress = Callable[[str, int, int, float, float, str], "bool | None"]
# make_queue(request, builder): the compiler's processes for what is planned (aoizora.compiler.queue)
MakeQueue = Callable[[dict[str, Any], str], AbstractContextManager[Any]]
# What builds our own model's programs (aoizora.compiler.queue.DEFAULT_BUILDER, which a cached plan need not import).
DEFAULT_BUILDER = "aoizora.models:build_step"


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
    source: str = "aoizora",
) -> Plan:
    """The best sharding and placement of one request on one slice; needs no TPU.

    size: height and width in pixels. slice: "v5e:4x4" or the path of a descriptor file (docs/topology.md).
    settings: of the planner, see docs/plan-format.md; workers: compiler processes, as many as cores by default.
    store: a file that keeps every answer of the compiler, so that what was asked once is not asked again.
    source: whose transformer is compiled, "aoizora" or "maxdiffusion", which must be importable.
    Raises InvalidRequest, Infeasible, CompilerFailed, Interrupted.
    """
    if not isinstance(size, Sequence) or len(size) != 2:
        raise InvalidRequest(f"size is {size!r}; give (height, width) in pixels, for example (480, 832)")
    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype is {str(dtype)[:40]!r}; allowed are {', '.join(DTYPES)}")
    request = {
        "model": ALIASES.get(str(model), model), "height": size[0], "width": size[1], "frames": frames,
        "videos": videos, "cfg": cfg, "steps": steps, "dtype": dtype, "reserved_hbm_bytes": reserved_hbm_bytes,
    }  # fmt: skip
    request_json = _core.request_json(json.dumps(request))
    slice_data = json.loads(_core.slice_json(slice))
    wanted, builder = json.loads(request_json), DEFAULT_BUILDER
    if source != "aoizora":
        if source != "maxdiffusion":
            raise InvalidRequest(f"source is {source!r}; allowed are aoizora and maxdiffusion")
        from aoizora.integrations import maxdiffusion

        wanted["source"] = {"name": source, "digest": maxdiffusion.source_digest()}
        builder = maxdiffusion.SOURCE_BUILDER
        # Its Ulysses costs a fifth more than stage 1 knows: kinds are compared by their compiled programs only.
        settings = {"survivors_of_each_kind": True, **(settings or {})}

    def run(make_queue: MakeQueue, settings_json: str, memory: CycleMemory | None) -> str:
        with make_queue(wanted, builder) as queue:
            return _core.plan(request_json, slice, settings_json, queue, progress, record_folder, memory)

    def complete(data: dict[str, Any]) -> None:
        if "source" in wanted:
            data["source"] = wanted["source"]

    return search(
        wanted,
        slice,
        slice_data,
        settings,
        run,
        complete,
        # What cannot be done is refused before any process starts.
        check=lambda: _core.make_workload(request_json),
        workers=workers,
        use_cache=use_cache,
        store=store,
    )


def search(
    request: dict[str, Any],
    slice: str,
    slice_data: dict[str, Any],
    settings: dict[str, Any] | None,
    run: Callable[[MakeQueue, str, CycleMemory | None], str],
    complete: Callable[[dict[str, Any]], None] | None = None,
    *,
    check: Callable[[], object] | None = None,
    workers: int | None = None,
    use_cache: bool = True,
    store: str | Path | None = None,
) -> Plan:
    """Through the cache: `run` plans with a queue that it has made for it, and gives plan.json's text.

    request: what is planned, as the cache knows it. complete: adds to the plan what only the caller knows. check:
    raises what is to be raised before any process starts, and after a look into the cache.
    """
    settings_json = _core.settings_json(json.dumps(settings or {}))
    key = cache.key_of(request, slice_data, json.loads(settings_json))
    if use_cache:
        cached = cache.lookup(key)
        if cached is not None:
            cached.from_cache = True
            return cached
    if check is not None:
        check()
    if workers is not None and workers < 1:
        raise InvalidRequest(f"workers is {workers}; it must be at least 1")
    if use_cache:
        cache.make_folder()

    from aoizora.compiler.store import open_queue
    from aoizora.cycle_memory import FILE_NAME, CycleMemory

    def make_queue(request: dict[str, Any], builder: str) -> Any:
        name, devices = slice_data["name"], _core.slice_devices(slice)
        return open_queue(store, request, name, devices, workers, builder)

    kind = slice_data["hardware"]["device_kind"]
    memory = CycleMemory(cache.folder() / FILE_NAME, cache.versions(), kind) if use_cache else None
    try:
        text = run(make_queue, settings_json, memory)
    finally:
        if memory is not None:
            memory.close()
    data = json.loads(text)
    if complete is not None:
        complete(data)
    result = Plan(data)
    if use_cache and not result.data["lost"]:
        try:
            cache.store(key, result)
        except InvalidRequest as error:  # a full disk must not cost the plan
            warnings.warn(f"the plan is not cached: {error}", stacklevel=3)
    return result
