"""What is to be served, as the user writes it: build_config. Imports no jax unless a TPU may be here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aoizora import _core
from aoizora.errors import InvalidRequest

if TYPE_CHECKING:
    from aoizora.plan_file import Plan
    from aoizora.serving.strategy import Strategy

# Names users know a model by, beside those of the planner: MaxDiffusion's.
ALIASES = {"wan2.1": "wan2.1-14b"}
# The element types that the models are built of.
DTYPES = ("bf16", "f16", "f32")

# The topologies that a Cloud TPU v5e of so many chips has (Cloud TPU documentation, TPU v5e configurations).
STANDARD_SHAPES = {
    1: "1x1",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}


class Request(NamedTuple):
    """One static request on one slice: all that chooses a plan. Hashable."""

    model: str
    height: int
    width: int
    frames: int
    slice: str
    videos: int = 1
    cfg: bool = True
    steps: int = 50
    dtype: str = "bf16"
    reserved_hbm_bytes: int = 0
    settings: str = "{}"
    """The planner's settings as JSON, those that were given."""

    def planned(self) -> dict[str, Any]:
        """The planner's request: everything but the slice and the settings."""
        return {name: value for name, value in self._asdict().items() if name not in ("slice", "settings")}


class Config:
    """A request, where no other package brings a configuration of its own; carries the strategy once applied."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.strategy: Strategy | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan in use, once apply_strategy_to_config was called."""
        return self.strategy.plan if self.strategy else None

    def __repr__(self) -> str:
        return f"Config({self.request})"


_ARGUMENTS = (
    *("model_name", "shape", "chips", "cfg", "slice", "videos", "steps", "dtype", "reserved_hbm_bytes", "settings"),
    "config_file",
)


_told: set[str] = set()


def tell(message: str) -> None:
    """Says what was assumed, once, to who started the program."""
    if sys.stderr is not None and message not in _told:
        _told.add(message)
        print(f"aoizora: {message}", file=sys.stderr, flush=True)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like a mistaken one, as the end of a message; empty where none is like it."""
    import difflib

    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def build_config(
    model_name: str = "wan2.1",
    shape: Sequence[int] = (480, 832, 21),
    chips: int | None = None,
    cfg: bool = True,
    *,
    slice: str | None = None,
    videos: int = 1,
    steps: int = 50,
    dtype: str = "bf16",
    reserved_hbm_bytes: int = 0,
    settings: Mapping[str, Any] | None = None,
    **extra: Any,
) -> Any:
    """The configuration of one static request, for a function decorated with auto_shard.

    shape: height and width in pixels, and frames. chips: how many; without `slice` the TPU that is present decides,
    and where there is none, v5e in its standard shape for that many chips. settings: the planner's
    (docs/plan-format.md). Where MaxDiffusion is importable the result is its own config with our request attached, and
    any further keyword sets the key of that name in it (`config_file` names another yml); elsewhere it is a Config.
    Raises InvalidRequest.
    """
    from aoizora.integrations import maxdiffusion

    model = ALIASES.get(model_name, model_name)
    if model not in _core.model_names():
        known = [*ALIASES, *_core.model_names()]
        hint = nearest(str(model_name), known)
        raise InvalidRequest(f"unknown model {model_name!r}; known: {', '.join(known)}{hint}")
    if not isinstance(shape, (list, tuple)) or len(shape) != 3:
        raise InvalidRequest(f"shape is {shape!r}; give (height, width, frames), for example (480, 832, 21)")
    theirs = maxdiffusion.Template.find(model, extra.pop("config_file", None))
    known_extra = theirs.keys if theirs else ()
    for name in extra:
        if name not in known_extra:
            where = "" if theirs else " (keys of MaxDiffusion's config are taken where it is importable)"
            raise InvalidRequest(f"unknown argument {name!r}{nearest(name, [*_ARGUMENTS, *known_extra])}{where}")
    given = json.dumps(dict(settings or {}), sort_keys=True)
    _core.settings_json(given)
    config = theirs.initialize(extra) if theirs else None  # before the devices are asked for: it may join other hosts
    height, width, frames = shape
    slice_name = choose_slice(chips, slice)
    request = Request(
        model, height, width, frames, slice_name, videos, cfg, steps, dtype, reserved_hbm_bytes, given
    )  # fmt: skip
    _core.make_workload(_core.request_json(json.dumps(request.planned())))
    if theirs is None:
        return Config(request)
    theirs.attach(config, request)
    return config


def choose_slice(chips: int | None, slice: str | None) -> str:
    """The slice to plan for: the one named, the TPU that is here, or v5e's standard shape for so many chips."""
    if chips is not None and (isinstance(chips, bool) or not isinstance(chips, int) or chips < 1):
        raise InvalidRequest(f"chips is {chips!r}; it must be a whole number of 1 or more")
    if slice is not None:
        there = _chips(slice)
        if chips is not None and chips != there:
            raise InvalidRequest(f"chips is {chips}, but the slice {slice} has {there}; leave one of them out")
        return slice
    from aoizora.serving import devices

    present = devices.present_slice()
    if present is not None:
        if chips is not None and chips != (there := _chips(present)):
            raise InvalidRequest(
                f"chips is {chips}, but this process sees {present}, {there} chips; leave chips out to plan for it, "
                "or name another slice: slice='v5e:4x4'"
            )
        return present
    if chips is None:
        raise InvalidRequest("no TPU is here: give chips=16, or a slice: slice='v5e:4x4'")
    if chips not in STANDARD_SHAPES:
        allowed = ", ".join(map(str, STANDARD_SHAPES))
        raise InvalidRequest(f"no v5e slice of {chips} chips; allowed: {allowed}, or name one: slice='v5e:2x6'")
    name = f"v5e:{STANDARD_SHAPES[chips]}"
    tell(f"no TPU is here: planning for {name}; slice= names another")
    return name


def _chips(slice: str) -> int:
    described = json.loads(_core.slice_json(slice))
    count = 1
    for size in described["dims"]:
        count *= size
    return count


def request_of(value: object) -> Request | None:
    """The request that a call's argument carries; None where it is no configuration of ours."""
    if isinstance(value, Config):
        return value.request
    get_keys = getattr(value, "get_keys", None)
    if get_keys is None:
        return None
    keys = get_keys()
    found = keys.get(ATTACHED) if isinstance(keys, dict) else None
    return found if isinstance(found, Request) else None


ATTACHED = "aoizora_request"
"""The key under which MaxDiffusion's config carries our request."""
