"""What a MaxDiffusion configuration runs today, priced by the plan's own measure: `aoizora check`."""

from __future__ import annotations

import ast
import importlib
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aoizora import _core
from aoizora.errors import CompilerFailed, Infeasible, InvalidRequest
from aoizora.integrations.maxdiffusion import MESH_AXES
from aoizora.plan_file import Plan
from aoizora.serving.request import nearest

# What base_wan_14b.yml says of the keys that decide the deployment; docs/maxdiffusion.md.
STOCK: dict[str, Any] = {
    **{f"ici_{axis}_parallelism": -1 if axis == "context" else 1 for axis in MESH_AXES},
    **{f"dcn_{axis}_parallelism": -1 if axis == "context" else 1 for axis in MESH_AXES},
    "logical_axis_rules": [
        ["activation_batch", ["data", "fsdp"]],
        ["activation_self_attn_heads", ["context", "tensor"]],
        ["activation_length", "context"],
        ["activation_heads", "tensor"],
        ["mlp", "tensor"],
        ["embed", ["context", "fsdp"]],
        ["heads", "tensor"],
    ],
    "attention": "flash",
    "attention_sharding_uniform": True,
    "flash_block_sizes": {"block_q": 512, "block_kv": 512},
    "allow_split_physical_axes": False,
}
# What `aoizora export` prints beside these: taken, so that its line can be given whole, and without effect here.
_PASTED = (
    *("flash_min_seq_length", "ulysses_shards", "ulysses_attention_chunks", "mask_padding_tokens"),
    "per_device_batch_size",
)
_GATHERED = ("flash", "tokamax_flash", "dot_product")
_PROXY_LAYERS = 3
# MaxDiffusion's name of each of our logical axes.
_NAMES = {
    "batch": "activation_batch",
    "sequence": "activation_length",
    "embed": "embed",
    "heads": "heads",
    "mlp": "mlp",
}


class Deployment(NamedTuple):
    """A configuration as our model can run it, and what of it that leaves out."""

    candidate: dict[str, Any]
    split_physical_axes: bool
    notes: list[str]


class Check(NamedTuple):
    """The deployment beside the plan, both from the HLO passes: comparable."""

    deployment: Deployment
    step_seconds: float
    best_order_step_seconds: float
    """The same program on the best device order: what the order alone would change."""
    plan_step_seconds: float
    steps: int
    hbm_bytes: float | None
    hbm_limit_bytes: float

    @property
    def percent(self) -> float:
        """How much longer a step takes than the plan's."""
        return 100 * (self.step_seconds / self.plan_step_seconds - 1)

    @property
    def video_seconds(self) -> float:
        """How much longer a video takes than the plan's."""
        return self.steps * (self.step_seconds - self.plan_step_seconds)


def read_keys(arguments: Sequence[str], config_file: str | Path | None = None) -> dict[str, Any]:
    """The keys of a yml (stock without one) under those given as key=value, as on MaxDiffusion's command line.

    A yml has hundreds of keys that decide nothing here; given by hand, one that is not known is a slip.
    """
    keys = dict(STOCK)
    if config_file is not None:
        keys |= _yml(Path(config_file))
    for argument in arguments:
        name, separator, text = argument.partition("=")
        if not separator or not name:
            raise InvalidRequest(f"{argument[:80]!r} is not key=value")
        if name not in STOCK and name not in _PASTED:
            others = [key for key in STOCK if not key.endswith("_parallelism")]
            raise InvalidRequest(
                f"unknown key {name[:80]!r}{nearest(name[:80], [*STOCK, *_PASTED])}; allowed as key=value: "
                f"ici_AXIS_parallelism, dcn_AXIS_parallelism (AXIS: {', '.join(MESH_AXES)}), {', '.join(others)}, and "
                "what export prints; the yml of --config may hold any, those that are not these decide nothing here"
            )
        keys[name] = _value(text)
    return keys


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _yml(path: Path) -> dict[str, Any]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise InvalidRequest("reading a yml needs the package pyyaml; or give the keys as key=value") from None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{path} holds no keys")
    return found


def deployment(keys: Mapping[str, Any], devices: int) -> Deployment:
    """A configuration as a candidate of ours. Raises InvalidRequest for what our model has no equal of."""
    mesh = _mesh(keys, devices)
    present = {axis for axis, size in mesh.items() if size > 1}
    rules = {axis: [name for name in _rule(keys, name_there) if name in present] for axis, name_there in _NAMES.items()}
    notes = []
    attention = str(keys.get("attention", "flash"))
    kind = "gathered" if attention in _GATHERED else "ulysses" if attention == "ulysses" else ""
    if not kind:
        raise InvalidRequest(
            f"attention={attention} has no equal in AoiZora's model; it has {', '.join(_GATHERED)}, ulysses"
        )
    if attention == "dot_product":
        notes.append("dot_product attention is priced as the flash kernel")
    heads = [name for name in _rule(keys, "activation_self_attn_heads") if name in present]
    uniform = bool(keys.get("attention_sharding_uniform", True))
    over_heads = [name for name in heads if name in rules["sequence"]]
    if kind == "gathered" and not uniform and over_heads:
        kind = "ulysses"
        notes.append(f"attention over heads on {', '.join(over_heads)} is priced as Ulysses, which moves the same")
    if uniform and rules["heads"]:
        notes.append(
            f"attention_sharding_uniform=True computes attention again on every rank of {', '.join(rules['heads'])}; "
            "it is priced as if it did not"
        )
    blocks = keys.get("flash_block_sizes") or {}
    if not isinstance(blocks, dict):
        raise InvalidRequest("flash_block_sizes must be a dict")
    candidate = {
        "mesh": [{"name": name, "size": size} for name, size in mesh.items()],
        "rules": rules,
        "attention": kind if rules["sequence"] else "gathered",
        "blocks": {"queries": int(blocks.get("block_q", 512)), "keys": int(blocks.get("block_kv", 512))},
        "compiler_options": {},
    }
    return Deployment(candidate, bool(keys.get("allow_split_physical_axes", False)), notes)


def _mesh(keys: Mapping[str, Any], devices: int) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for axis in MESH_AXES:
        across = keys.get(f"dcn_{axis}_parallelism", 1)
        if across not in (1, -1):
            raise InvalidRequest(f"dcn_{axis}_parallelism is {across}; AoiZora plans one slice")
        size = keys.get(f"ici_{axis}_parallelism", 1)
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):
            raise InvalidRequest(f"ici_{axis}_parallelism is {size!r}; it must be a whole number of 1 or more, or -1")
        sizes[axis] = size
    free = [axis for axis, size in sizes.items() if size == -1]
    rest = math.prod(size for size in sizes.values() if size > 0)
    if len(free) > 1:
        raise InvalidRequest(f"one axis may be -1; {', '.join(free)} are")
    if free and devices % rest == 0:
        sizes[free[0]] = devices // rest
    if math.prod(sizes.values()) != devices:
        raise InvalidRequest(f"the mesh {sizes} does not have the slice's {devices} devices")
    return sizes


def _rule(keys: Mapping[str, Any], name: str) -> list[str]:
    """The mesh axes of the first rule with a name."""
    for rule in keys.get("logical_axis_rules", ()):
        if isinstance(rule, (list, tuple)) and len(rule) == 2 and rule[0] == name:
            axes = rule[1]
            return [] if axes is None else [axes] if isinstance(axes, str) else [str(axis) for axis in axes]
    return []


def check(plan: Plan, keys: Mapping[str, Any]) -> Check:
    """Compiles a deployment up to the HLO passes and prices it under its own device order, beside the plan.

    Raises InvalidRequest, Infeasible where it cannot run (it says why), CompilerFailed.
    """
    from aoizora.compiler.store import open_queue

    request = plan.request
    described = plan.data["slice"]
    with tempfile.TemporaryDirectory() as folder:  # the plan's own numbers, whatever this version's are
        slice = str(Path(folder) / "slice.json")
        Path(slice).write_text(json.dumps(described), encoding="utf-8")
        try:
            places = _core.slice_devices(slice)
        except InvalidRequest as error:
            raise InvalidRequest(f"the plan was made by another version of AoiZora, plan again: {error}") from None
        deployed = deployment(keys, len(places))
        candidate = json.dumps(deployed.candidate)
        order = _core.mesh_utils_order(
            json.dumps({axis["name"]: axis["size"] for axis in deployed.candidate["mesh"]}),
            slice,
            deployed.split_physical_axes,
        )
        ids = {(*at, core): number for number, (at, core) in enumerate(places)}
        devices = [ids[tuple(at) if len(at) > len(places[0][0]) else (*at, 0)] for at in order]
        job = {
            "id": 0,
            "candidate": deployed.candidate,
            "rung": "passes",
            "layers": _PROXY_LAYERS,
            "placement": devices,
        }
        with open_queue(None, request, described["name"], [(list(at), core) for at, core in places], 1) as queue:
            queue.submit(json.dumps({**job, "priority": 0.0}))
            answer = queue.next()
        if answer["outcome"] == "out_of_memory":
            raise Infeasible(f"this deployment does not fit in HBM: {answer['failure'].splitlines()[0][:300]}")
        if answer["outcome"] != "ok":
            raise CompilerFailed(f"the compiler gave no answer for this deployment: {answer['failure'][:600]}")
        table = _core.make_workload(json.dumps(request))
        text, layers = answer["text"], plan.data["layers"]
        score = json.loads(_core.score(text, table, candidate, slice, devices, layers, "passes"))
        priced = json.loads(_core.price(text, answer["memory_report"], table, candidate, slice, layers, "passes"))
    best = min(placement["step_seconds"] for placement in priced["placements"])
    result = Check(
        deployed,
        score["step_seconds"],
        min(best, score["step_seconds"]),
        plan.data["best"]["passes_step_seconds"],
        request["steps"],
        priced["hbm_bytes"],
        plan.data["hbm"]["limit_bytes"],
    )
    if result.hbm_bytes is not None and result.hbm_bytes > result.hbm_limit_bytes:
        result.deployment.notes.append(
            f"at full depth it needs {result.hbm_bytes / 2**30:.2f} GiB of HBM, more than there is: it would not run"
        )
    return result
