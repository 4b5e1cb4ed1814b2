"""Many plans from one file: `aoizora sweep FILE.toml`. Each is kept as it comes; a sweep goes on where it was."""

from __future__ import annotations

import importlib
import itertools
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aoizora import _core, cache
from aoizora.errors import CompilerFailed, Error, Infeasible, Interrupted, InvalidRequest, ParseError
from aoizora.plan_file import Plan, write_whole
from aoizora.planning import Progress, plan
from aoizora.serving.request import ALIASES

# Each may be one value or a list of them; the sweep is over all combinations, the last the fastest.
_AXES: dict[str, Any] = {
    "model": "wan2.1-14b",
    "slice": "v5e:4x4",
    "size": "480x832",
    "frames": 21,
    "videos": 1,
    "cfg": True,
    "steps": 50,
    "dtype": "bf16",
    "reserve_hbm_gib": 0,
}


class Task(NamedTuple):
    """One plan of a sweep; `arguments` are those of `aoizora.plan`."""

    name: str
    arguments: dict[str, Any]


class Row(NamedTuple):
    """What became of a task: "planned", "kept" from before, or "failed"."""

    name: str
    outcome: str
    sharding: str = ""
    step_seconds: float = 0.0
    video_seconds: float = 0.0
    error: str = ""
    exit_code: int = 0


def read(path: str | Path) -> list[Task]:
    """The tasks of a TOML file: the axes' names at the top, a table `settings` for the planner. Raises InvalidRequest,
    ParseError."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ParseError(f"{path}: {error}") from None
    except ValueError as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from None
    settings = data.pop("settings", {})
    unknown = sorted(data.keys() - _AXES.keys())
    if unknown or not isinstance(settings, dict):
        raise InvalidRequest(f"{path}: unknown {', '.join(unknown)}; known: {', '.join(_AXES)}, and a table settings")
    try:
        axes = {name: _list(name, data.get(name, value)) for name, value in _AXES.items()}
        tasks = [_task(dict(zip(axes, values, strict=True)), settings) for values in itertools.product(*axes.values())]
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from None
    if len({task.name for task in tasks}) != len(tasks):
        raise InvalidRequest(f"{path}: two slices' files have one name: rename one")
    for task in tasks:  # what is wrong with any is said before the first is planned
        try:
            _key(task)
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}, {task.name}: {error}") from None
    return tasks


def _list(name: str, value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    kind = type(_AXES[name])
    allowed = (int, float) if name == "reserve_hbm_gib" else (kind,)
    for each in values:
        if not isinstance(each, allowed) or (kind is not bool and isinstance(each, bool)):
            raise InvalidRequest(f"{name} has {each!r}; each must be like {_AXES[name]!r}")
    if not values or len(set(values)) != len(values):
        raise InvalidRequest(f"{name} is empty or names a value twice")
    return values


def _task(values: dict[str, Any], settings: dict[str, Any]) -> Task:
    values = {**values, "model": ALIASES.get(values["model"], values["model"])}
    height, cross, width = values["size"].partition("x")
    if not cross or not (height.isdecimal() and width.isdecimal() and len(height + width) < 12):
        raise InvalidRequest(f"size {values['size']!r}: give height x width in pixels, for example 480x832")
    place = Path(values["slice"]).stem.replace(":", "-")
    parts = [values["model"], values["size"], f"{values['frames']}f", place]
    parts += [f"{values[name]}{name}" for name in ("videos", "steps") if values[name] != _AXES[name]]
    parts += ["nocfg"] if not values["cfg"] else []
    parts += [values["dtype"]] if values["dtype"] != _AXES["dtype"] else []
    parts += [f"{values['reserve_hbm_gib']:g}gib"] if values["reserve_hbm_gib"] else []
    arguments = {name: values[name] for name in ("model", "frames", "slice", "videos", "cfg", "steps", "dtype")}
    arguments |= {"size": (int(height), int(width)), "reserved_hbm_bytes": int(values["reserve_hbm_gib"] * 2**30)}
    return Task("_".join(parts), {**arguments, "settings": settings})


def _key(task: Task) -> dict[str, Any]:
    """All that decides the task's plan, as the cache has it."""
    given = dict(task.arguments)
    height, width = given.pop("size")
    slice, settings = given.pop("slice"), given.pop("settings")
    request = _core.request_json(json.dumps({**given, "height": height, "width": width}))
    _core.make_workload(request)
    described, filled = _core.slice_json(slice), _core.settings_json(json.dumps(settings))
    return cache.key_of(json.loads(request), json.loads(described), json.loads(filled))


def kept(task: Task, folder: Path) -> Plan | None:
    """The task's plan from an earlier sweep, if it still is what would be planned."""
    try:
        found = Plan.load(folder / f"{task.name}.json")
        stamp = (folder / f".{task.name}.key").read_text(encoding="utf-8")
    except (OSError, ValueError, Error):
        return None
    return found if stamp == cache.digest_of(_key(task)) else None


Planner = Callable[[Sequence[Task]], Iterable[tuple[Task, str | Error]]]
"""Plans tasks, in any order: each with its plan's text, or what went wrong."""


def run(tasks: Sequence[Task], folder: Path, planner: Planner, told: Callable[[Row], None] | None = None) -> list[Row]:
    """Plans what is not there yet; rows in the order of the tasks, also in the folder's sweep.json."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = {}

    def take(row: Row) -> None:
        rows[row.name] = row
        if told is not None:
            told(row)

    missing = []
    for task in tasks:
        found = kept(task, folder)
        if found is None:
            missing.append(task)
        else:
            take(_row(task.name, "kept", found))
    for task, answer in planner(missing):
        if isinstance(answer, Error):
            take(Row(task.name, "failed", error=str(answer), exit_code=answer.exit_code))
            continue
        found = Plan.loads(answer)
        found.save(folder / f"{task.name}.json")
        if not found.data["lost"]:  # else it is planned again next time
            write_whole(folder / f".{task.name}.key", cache.digest_of(_key(task)))
        take(_row(task.name, "planned", found))
    ordered = [rows[task.name] for task in tasks]
    write_whole(folder / "sweep.json", json.dumps([row._asdict() for row in ordered], indent=1) + "\n")
    return ordered


def _row(name: str, outcome: str, found: Plan) -> Row:
    best = found.data["best"]
    return Row(name, outcome, best["sharding"], best["predicted"]["step_seconds"], best["predicted"]["video_seconds"])


def local(workers: int | None = None, progress: Progress | None = None) -> Planner:
    """Plans here, one task after the other: each uses all the compiler processes there are."""

    def planner(tasks: Sequence[Task]) -> Iterator[tuple[Task, str | Error]]:
        for task in tasks:
            yield task, _answer(task.arguments, workers, progress)

    return planner


def on_cluster(address: str, workers: int | None = None) -> Planner:
    """Plans on the workers of a running Dask scheduler, which need AoiZora installed in the same version."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise InvalidRequest("a scheduler needs the package distributed: pip install aoizora[cluster]") from None

    def planner(tasks: Sequence[Task]) -> Iterator[tuple[Task, str | Error]]:
        if not tasks:
            return
        try:
            client = distributed.Client(address, timeout="30s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"no Dask scheduler answers at {address}: {error}") from None
        with client:
            _check_versions(client, address)
            futures = {client.submit(_remote, task.arguments, workers, pure=False): task for task in tasks}
            for future in distributed.as_completed(list(futures), loop=client.loop):
                task = futures.pop(future)
                lost = future.exception()
                if lost is not None:
                    yield task, CompilerFailed(f"the worker failed: {type(lost).__name__}: {lost}")
                    continue
                kind, text = future.result()
                yield task, _ERRORS[kind](text) if kind else text

    return planner


def _check_versions(client: Any, address: str) -> None:
    """Plans of one sweep come from one planner."""
    here = [cache.own_digest(), *cache.versions()]
    for worker, there in client.run(_versions).items():
        if there != here:
            raise InvalidRequest(
                f"worker {worker} of {address} has another AoiZora, jax or libtpu than this process: {there[1:]}, "
                f"here {here[1:]}"
            )


def _versions() -> list[str]:
    return [cache.own_digest(), *cache.versions()]


_ERRORS: dict[str, type[Error]] = {kind.__name__: kind for kind in (CompilerFailed, Infeasible, Interrupted)} | {
    "InvalidRequest": InvalidRequest
}


def _remote(arguments: dict[str, Any], workers: int | None) -> tuple[str, str]:
    """On a worker: the kind of error and what it says, or no kind and the plan's text."""
    answer = _answer(arguments, workers, None)
    if isinstance(answer, str):
        return "", answer
    kind = type(answer).__name__
    return kind if kind in _ERRORS else "CompilerFailed", str(answer)


def _answer(arguments: dict[str, Any], workers: int | None, progress: Progress | None) -> str | Error:
    try:
        return plan(**arguments, workers=workers, progress=progress).dumps()
    except Interrupted:
        raise
    except Error as error:
        return error
