"""A public Wan checkpoint (a folder of safetensors) read straight into a plan's shards.

Each device's part of each tensor is read from the file on its own: the whole model is never on one device, and no whole
tensor in host memory unless every device needs it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aoizora.errors import InvalidRequest
from aoizora.models import wan
from aoizora.models.sharding import Sharding
from aoizora.planning import Progress

WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"

# Keys of the public config that this model does not need, with the values under which it does not.
_INDIFFERENT = {"_class_name", "_diffusers_version", "_name_or_path", "rope_max_seq_len"}
_ABSENT = {"image_dim", "added_kv_proj_dim", "pos_embed_seq_len"}


def load_checkpoint(
    folder: str | os.PathLike[str],
    sharding: Sharding,
    *,
    dtype: str = "bf16",
    progress: Progress | None = None,
) -> tuple[wan.WanConfig, wan.Params]:
    """Config and parameters of a folder with config.json and safetensors (or its subfolder "transformer").

    Missing, unknown and misshapen tensors are all named. Raises InvalidRequest.
    """
    place = Path(folder)
    if not (place / "config.json").is_file() and (place / "transformer" / "config.json").is_file():
        place /= "transformer"
    config = read_config(place / "config.json")
    table = config.table((1, config.in_channels, *config.patch_size), 1, dtype)
    shapes = wan.parameter_shapes(table, sharding)
    wanted = {tensor["name"]: tensor for tensor in table["weights"]}
    with ExitStack() as files:
        stored = _open(place, files)
        _check(wanted, stored, config)
        params: wan.Params = {}
        started = time.monotonic()
        for number, (name, shape) in enumerate(shapes.items(), start=1):
            read = _reader(name, wanted[name], stored, config)
            params[name] = jax.make_array_from_callback(
                shape.shape, shape.sharding, _remember(read, shape.shape, shape.dtype)
            )
            if progress is not None:
                params[name].block_until_ready()
                elapsed = time.monotonic() - started
                progress("load", number, len(shapes), elapsed, elapsed / number * (len(shapes) - number), "")
    return config, params


def read_config(path: Path) -> wan.WanConfig:
    """A config.json of the public checkpoint. Raises InvalidRequest for what this model cannot do."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"{path} holds no JSON object")
    for key in _ABSENT:
        if data.pop(key, None) is not None:
            raise InvalidRequest(f"{path}: {key} is set; this model takes text alone")
    lines = []
    for key, value in data.items():
        if key in _INDIFFERENT:
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        lines.append(f"{key}={text}")
    return wan.read_config(lines)


_NO_SAFETENSORS = "checkpoints need the package safetensors: pip install 'aoizora[serve]'"
Stored = dict[str, Any]
"""Tensor name -> its lazy slice, which has get_shape() and reads what it is indexed with."""


def _open(folder: Path, files: ExitStack) -> Stored:
    try:
        import ml_dtypes  # noqa: F401  numpy then knows bfloat16, as safetensors names it
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise InvalidRequest(_NO_SAFETENSORS) from None
    names: list[str]
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{index} is no index of safetensors: {type(error).__name__}: {error}") from None
    else:
        names = [WEIGHTS]
    stored: Stored = {}
    for name in names:
        path = folder / str(name)
        if path.parent != folder:
            raise InvalidRequest(f"{index} names {name!r}, which is not beside it")
        if not path.is_file():
            raise InvalidRequest(f"{path} is missing" + ("" if index.is_file() else f", and so is {INDEX}"))
        try:
            file = files.enter_context(safe_open(path, framework="numpy"))
            stored |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  it is no dict
        except (SafetensorError, OSError) as error:
            raise InvalidRequest(f"{path} is no whole safetensors file: {error}") from None
    return stored


def _names(tensor: dict[str, Any]) -> list[str]:
    """The tensor's name in the checkpoint, one for each layer where it is stacked."""
    name: str = tensor["name"]
    if not name.startswith("blocks."):
        return [name]
    return [name.replace("blocks.", f"blocks.{layer}.", 1) for layer in range(tensor["repeat"])]


def _stored_shape(name: str, dims: tuple[int, ...], config: wan.WanConfig) -> tuple[int, ...]:
    """Its shape in the checkpoint: matrices [out, in], modulation tables with a leading 1, the patch a convolution."""
    if name.endswith("scale_shift_table"):
        return (1, *dims)
    if name == "patch_embedding.weight":
        return (config.embed, config.in_channels, *config.patch_size)
    return dims[::-1]


def _check(wanted: dict[str, dict[str, Any]], stored: Stored, config: wan.WanConfig) -> None:
    missing, wrong = [], []
    known: set[str] = set()
    for tensor in wanted.values():
        dims = tuple(dim["size"] for dim in tensor["dims"])
        expected = _stored_shape(tensor["name"], dims, config)
        for name in _names(tensor):
            known.add(name)
            if name not in stored:
                missing.append(name)
            elif (shape := tuple(stored[name].get_shape())) != expected:
                wrong.append(f"{name} is {shape}, its config wants {expected}")
    unknown = sorted(stored.keys() - known)
    problems = [
        f"{len(found)} tensors {what}: {_some(found)}"
        for what, found in (("missing", missing), ("of the wrong shape", wrong), ("unknown", unknown))
        if found
    ]
    if problems:
        raise InvalidRequest(f"the checkpoint does not fit its config: {'; '.join(problems)}")


Index = tuple[slice, ...]


def _reader(name: str, tensor: dict[str, Any], stored: Stored, config: wan.WanConfig) -> Callable[[Index], np.ndarray]:
    """Reads a part of a parameter, in our layout, from the checkpoint's tensors."""
    slices = [stored[each] for each in _names(tensor)]

    def part(source: Any, at: Index) -> np.ndarray:
        if name.endswith("scale_shift_table"):
            value = source[(slice(0, 1), *at)][0]
        elif name == "patch_embedding.weight":
            value = np.asarray(source[at[1]]).reshape(-1, int(np.prod(source.get_shape()[1:])))[:, at[0]].T
        else:
            value = np.asarray(source[at[::-1]]).T
        return np.asarray(value)

    if not name.startswith("blocks."):
        return lambda at: part(slices[0], at)
    return lambda at: np.stack([part(source, at[1:]) for source in slices[at[0]]])


def _remember(read: Callable[[Index], np.ndarray], shape: tuple[int, ...], dtype: Any) -> Callable[[Index], np.ndarray]:
    """Devices that hold the same part share one read."""
    parts: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def callback(index: Index) -> np.ndarray:
        bounds = tuple(where.indices(size)[:2] for where, size in zip(index, shape, strict=True))
        if bounds not in parts:
            parts[bounds] = read(tuple(slice(*pair) for pair in bounds)).astype(dtype)
        return parts[bounds]

    return callback


def save_random_checkpoint(
    folder: str | os.PathLike[str], config: wan.WanConfig, *, seed: int = 0, files: int = 2
) -> None:
    """A checkpoint of the public form with random weights, to try things with: no video comes of it."""
    try:
        from safetensors.numpy import save_file
    except ImportError:
        raise InvalidRequest(_NO_SAFETENSORS) from None
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    public = {name: getattr(config, name) for name in wan.WanConfig.__dataclass_fields__}
    public |= {"_class_name": "WanTransformer3DModel", "patch_size": list(config.patch_size)}
    public |= {"cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "image_dim": None}
    (place / "config.json").write_text(json.dumps(public, indent=2), encoding="utf-8")
    tensors = dict(_random_tensors(config, np.random.default_rng(seed)))
    weight_map: dict[str, str] = {}
    for number in range(files):
        name = f"diffusion_pytorch_model-{number + 1:05d}-of-{files:05d}.safetensors"
        part = {key: tensors[key] for key in list(tensors)[number::files]}
        save_file(part, place / name)
        weight_map |= dict.fromkeys(part, name)
    total = sum(value.nbytes for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (place / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _random_tensors(config: wan.WanConfig, random: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    for tensor in config.table((1, config.in_channels, *config.patch_size), 1, "f32")["weights"]:
        dims = tuple(dim["size"] for dim in tensor["dims"])
        for name in _names(tensor):
            shape = _stored_shape(tensor["name"], dims, config)
            value = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 10)
            if "norm" in name and name.endswith("weight"):
                value += 1
            yield name, value.astype(np.float32)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
