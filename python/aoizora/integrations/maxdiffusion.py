"""MaxDiffusion: a plan in its configuration keys (base_wan_14b.yml and its kin), on its command line, and in the device
order of its mesh. Nothing of it is imported before a configuration of it is wanted."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoizora.errors import InvalidRequest
from aoizora.plan_file import Plan

if TYPE_CHECKING:
    from aoizora.serving.request import Request
    from aoizora.serving.strategy import Strategy

MESH_AXES = ("data", "fsdp", "context", "tensor")
"""Its mesh axes; their order is fixed in its code."""

# MaxDiffusion's name of each attention kind.
_ATTENTION = {"gathered": "flash", "ulysses": "ulysses", "ring": "tokamax_ring"}
_CONFIG_FILES = {"wan2.1-14b": "base_wan_14b.yml", "wan2.1-1.3b": "base_wan_1_3b.yml"}
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


# Configuration


def axis_rules(plan: Plan) -> list[list[Any]]:
    """The plan's rules under MaxDiffusion's logical names; it takes the first rule of a name whose mesh axes are free.

    `activation_heads` is its name of the residual stream's width too. Divided over the heads' axes, as its stock rules
    have it, every matrix product gathers or reduces the stream anew; the plan keeps it whole, and then its transformer
    has the plan's collectives (docs/maxdiffusion.md). Norm and convolution names follow the axis whose dimension they
    share: nothing of the transformer's block hangs on them.
    """
    return rules_of(plan.axis_rules, plan.data["attention"])


def rules_of(rules: Mapping[str, Sequence[str]], attention: str) -> list[list[Any]]:
    """The same of any sharding's rules and attention kind."""

    def axes(name: str) -> Any:
        mesh_axes = list(rules.get(name, ()))
        return None if not mesh_axes else mesh_axes[0] if len(mesh_axes) == 1 else mesh_axes

    batch, sequence, embed, heads, mlp = (axes(name) for name in ("batch", "sequence", "embed", "heads", "mlp"))
    keys = None if attention == "gathered" else sequence
    return [
        ["batch", batch],
        ["activation_batch", batch],
        ["activation_self_attn_heads", heads],
        ["activation_self_attn_q_length", sequence],
        ["activation_self_attn_kv_length", keys],
        ["activation_cross_attn_heads", heads],
        ["activation_cross_attn_q_length", sequence],
        ["activation_cross_attn_kv_length", keys],
        ["activation_length", sequence],
        ["activation_kv_length", keys],
        ["activation_heads", None],
        ["mlp", mlp],
        ["embed", embed],
        ["heads", heads],
        ["norm", heads],
        ["conv_batch", batch],
        ["out_channels", heads],
        ["conv_out", sequence],
    ]


def flax_rules(plan: Plan) -> list[tuple[str, Any]]:
    """The same as flax takes them."""
    return as_flax(axis_rules(plan))


def as_flax(rules: Sequence[Sequence[Any]]) -> list[tuple[str, Any]]:
    """Rules with tuples in place of lists."""
    return [(name, _tuples(mesh_axes)) for name, mesh_axes in rules]


def attention_name(kind: str) -> str:
    """MaxDiffusion's name of an attention kind."""
    if kind not in _ATTENTION:
        raise InvalidRequest(f"MaxDiffusion has no attention {kind!r}; it has {', '.join(_ATTENTION)}")
    return _ATTENTION[kind]


def block_sizes(queries: int, keys: int) -> dict[str, Any]:
    """flash_block_sizes for these blocks of the kernel."""
    return {
        "block_q": queries, "block_kv_compute": keys, "block_kv": keys, "block_q_dkv": queries,
        "block_kv_dkv": keys, "block_kv_dkv_compute": keys, "block_q_dq": queries, "block_kv_dq": keys,
        "use_fused_bwd_kernel": False,
    }  # fmt: skip


def settings(plan: Plan) -> dict[str, Any]:
    """Every key of its configuration that a plan decides."""
    request, attention = plan.request, attention_name(plan.data["attention"])
    shape = plan.mesh_shape
    foreign = [axis for axis, size in shape.items() if axis not in MESH_AXES and size > 1]
    if foreign:
        raise InvalidRequest(f"MaxDiffusion's mesh has the axes {', '.join(MESH_AXES)}; the plan divides {foreign}")
    blocks = plan.data["kernel_blocks"]
    queries, keys = int(blocks["queries"]), int(blocks["keys"])
    devices = math.prod(shape.values())
    return {
        **{f"ici_{axis}_parallelism": shape.get(axis, 1) for axis in MESH_AXES},
        **{f"dcn_{axis}_parallelism": 1 for axis in MESH_AXES},
        "logical_axis_rules": axis_rules(plan),
        "attention": attention,
        "attention_sharding_uniform": False,
        "flash_block_sizes": block_sizes(queries, keys),
        "flash_min_seq_length": 0,  # the kernel for cross attention too, as planned
        "ulysses_shards": -1,
        "ulysses_attention_chunks": 1,
        "mask_padding_tokens": True,
        "allow_split_physical_axes": True,
        "per_device_batch_size": per_device_batch(int(request["videos"]), devices),
    }  # fmt: skip


def per_device_batch(videos: int, devices: int) -> float:
    """Its per_device_batch_size for so many videos in all: the number that its int(devices * size) makes them again."""
    size = videos / devices
    return size if int(devices * size) == videos else math.nextafter(size, math.inf)


def command_line(plan: Plan) -> str:
    """The keys of a plan as its command line takes them, ready to paste into a shell."""
    return " ".join(_quoted(f"{name}={_text(value)}") for name, value in settings(plan).items())


def _quoted(text: str) -> str:
    """Quoted for a shell, double where that is readable."""
    if "'" in text and not set(text) & set('"$`\\!'):
        return f'"{text}"'
    import shlex

    return shlex.quote(text)


def export(plan: Plan) -> str:
    """What to paste: the flags the compiler needs, the keys, and what the keys cannot say."""
    from aoizora.serving.strategy import flags_line

    lines = [line for line in (flags_line(plan.data["compiler_options"]),) if line]
    lines.append(command_line(plan))
    lines.append(
        "# The device order has no key: run under @aoizora.auto_shard(plan=...), which answers its mesh with it."
    )
    if plan.data["attention"] != "gathered" and plan.axis_rules.get("heads"):
        lines.append(
            "# By its command line attention divides no heads over "
            f"{', '.join(plan.axis_rules['heads'])}: its own rules come first. apply_strategy_to_config sets ours."
        )
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    """A value as its command line reads it: dicts as JSON, the rest as Python writes it."""
    return json.dumps(value) if isinstance(value, dict) else str(value)


def apply(plan: Plan, keys: dict[str, Any], devices: int) -> None:
    """Writes a plan into the keys of an initialized configuration, which its own start has transformed already."""
    wanted = settings(plan)
    missing = sorted(name for name in wanted if name not in keys)
    if missing:
        raise InvalidRequest(
            f"this configuration lacks {', '.join(missing)}, which the plan sets: use a yml of MaxDiffusion's Wan 2.1"
        )
    if list(keys.get("mesh_axes", ())) != list(MESH_AXES):
        raise InvalidRequest(f"mesh_axes is {keys.get('mesh_axes')}; MaxDiffusion's Wan knows {list(MESH_AXES)} only")
    rules = _tuples(wanted["logical_axis_rules"])
    # What its start appends where no rule names it.
    wanted["logical_axis_rules"] = (*rules, ("layers_per_stage", None))
    keys.update(wanted)
    _set_batch(keys, wanted["per_device_batch_size"], devices)


def _set_batch(keys: dict[str, Any], per_device: float, devices: int) -> None:
    """The batch sizes its start derives."""
    total = int(devices * per_device)
    derived = {
        "per_device_batch_size": per_device,
        "total_train_batch_size": total,
        "global_batch_size_to_load": devices if per_device < 1 else total,
        "global_batch_size_to_train_on": total,
    }
    keys.update({name: value for name, value in derived.items() if name in keys})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


class Template:
    """One of its ymls, to be initialized by its own pyconfig."""

    def __init__(self, path: Path) -> None:
        self._path = path
        yaml = importlib.import_module("yaml")
        self.keys: tuple[str, ...] = tuple(yaml.safe_load(path.read_text(encoding="utf-8")))

    @classmethod
    def find(cls, model: str, config_file: str | os.PathLike[str] | None) -> Template | None:
        """The yml of a model; None where MaxDiffusion is not importable."""
        if not is_importable():
            if config_file is not None:
                raise InvalidRequest("config_file names a yml of MaxDiffusion's, which is not importable here")
            return None
        if config_file is not None:
            path = Path(config_file)
        else:
            specification = importlib.util.find_spec("maxdiffusion")
            assert specification is not None
            assert specification.origin is not None
            path = Path(specification.origin).parent / "configs" / _CONFIG_FILES[model]
        if not path.is_file():
            raise InvalidRequest(f"there is no configuration {path}; config_file names another")
        return cls(path)

    def initialize(self, extra: Mapping[str, Any]) -> Any:
        """Its configuration with our caller's keys. It checks them itself; what it refuses is told as it says it."""
        decided = sorted(set(extra) & _DECIDED)
        if decided:
            raise InvalidRequest(f"{', '.join(decided)}: given by build_config's own arguments or by the plan")
        pyconfig = importlib.import_module("maxdiffusion.pyconfig")
        try:
            pyconfig.initialize(
                [__name__, str(self._path), *(f"{name}={_text(value)}" for name, value in extra.items())]
            )
        except ValueError as error:
            raise InvalidRequest(f"MaxDiffusion refuses the configuration: {error}") from error
        return pyconfig.config

    def attach(self, config: Any, request: Request) -> None:
        """Our request in its keys, and what of it they name."""
        import jax

        from aoizora.serving.request import ATTACHED

        keys = config.get_keys()
        keys.update(
            height=request.height,
            width=request.width,
            num_frames=request.frames,
            num_inference_steps=request.steps,
            weights_dtype=jax.numpy.dtype(_DTYPES[request.dtype]),
            activations_dtype=jax.numpy.dtype(_DTYPES[request.dtype]),
        )
        if not request.cfg:
            keys["guidance_scale"] = 1.0  # its pipelines guide above 1
        elif keys.get("guidance_scale", 0) <= 1:
            raise InvalidRequest(
                f"cfg is True, but guidance_scale is {keys.get('guidance_scale')}: above 1, or cfg=False"
            )
        devices = jax.device_count()
        _set_batch(keys, per_device_batch(request.videos, devices), devices)
        keys[ATTACHED] = request


# What build_config's own arguments or the plan set.
_DECIDED = frozenset(
    ["height", "width", "num_frames", "num_inference_steps", "weights_dtype", "activations_dtype", "model_name"]
    + ["per_device_batch_size", "logical_axis_rules", "mesh_axes", "attention", "allow_split_physical_axes"]
    + [f"{network}_{axis}_parallelism" for network in ("ici", "dcn") for axis in MESH_AXES]
)


def is_importable() -> bool:
    """Whether its configuration can be made here: found, not imported."""
    try:
        found = importlib.util.find_spec("maxdiffusion")
    except (ImportError, ValueError):
        return False
    places = (found.submodule_search_locations or []) if found else []
    return any((Path(place) / "pyconfig.py").is_file() for place in places)


SOURCE_BUILDER = "aoizora.integrations.maxdiffusion_step:build"
"""What builds its own transformer's program (aoizora.compiler.queue)."""


def source_digest() -> str:
    """Digest of its code, which decides its programs. Raises InvalidRequest where it is not importable."""
    if not is_importable():
        raise InvalidRequest(
            "source is 'maxdiffusion', which is not importable here: put the src folder of a checkout of "
            "AI-Hypercomputer/maxdiffusion on PYTHONPATH, with its requirements installed; or plan without a source"
        )
    import hashlib

    found = importlib.util.find_spec("maxdiffusion")
    digest = hashlib.sha256()
    for place in (found.submodule_search_locations or []) if found else []:
        for file in sorted(Path(place).rglob("*.py")):
            digest.update(file.relative_to(place).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


# Device order

_lock = threading.Lock()
_active: list[Strategy] = []
_original: Any = None


@contextlib.contextmanager
def device_order(strategy: Strategy) -> Iterator[None]:
    """While any call is inside, its create_device_mesh answers with the plan's device order; then it is as before."""
    global _original
    module: Any = sys.modules.get("maxdiffusion.max_utils")
    if module is None:
        yield
        return
    with _lock:
        if not _active:
            _original = module.create_device_mesh
            module.create_device_mesh = _create_device_mesh
        _active.append(strategy)
    try:
        yield
    finally:
        with _lock:
            _active.remove(strategy)
            if not _active and module.create_device_mesh is _create_device_mesh:
                module.create_device_mesh = _original


def _create_device_mesh(config: Any, devices: Any = None, logging: bool = True) -> Any:
    """Its function of that name, under a plan."""
    strategy = _strategy_here()
    mesh = strategy.mesh if strategy is not None else None
    if mesh is not None and (devices is None or set(devices) == set(mesh.devices.flat)):
        wanted = [getattr(config, f"ici_{axis}_parallelism", None) for axis in MESH_AXES]
        planned = [mesh.shape.get(axis, 1) for axis in MESH_AXES]
        if wanted == planned:
            return mesh.devices.reshape(planned)
        warnings.warn(
            f"the configuration's mesh is {wanted}, the plan's {planned} ({', '.join(MESH_AXES)}): its own device "
            "order is used. Call aoizora.apply_strategy_to_config(config) first.",
            RuntimeWarning,
            stacklevel=2,
        )
    return _original(config, devices, logging)


def _strategy_here() -> Strategy | None:
    """This thread's strategy; a thread that has none, such as a loader's, takes the only one there is."""
    from aoizora.serving.strategy import current

    found = current.get()
    if found is not None:
        return found
    with _lock:
        distinct = {id(strategy): strategy for strategy in _active}
    return next(iter(distinct.values())) if len(distinct) == 1 else None
