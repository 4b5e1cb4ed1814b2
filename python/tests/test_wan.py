"""Wan's output: equal to the recorded one, to an independent implementation at other sizes, to itself when sharded."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import wan_reference

from aoizora.errors import InvalidRequest
from aoizora.models import wan
from aoizora.models.attention import every_key

GOLDEN = Path(__file__).parents[2] / "tests" / "data" / "wan_tiny.npz"
TOLERANCE = 1e-4

OTHER_SIZES = {
    "heads, depth, text": ({"num_attention_heads": 6, "num_layers": 3, "ffn_dim": 40}, (2, 6, 10), 11, 1),
    "patch in time": ({"patch_size": (2, 2, 4), "freq_dim": 16}, (4, 6, 8), 5, 3),
    "channels": ({"in_channels": 3, "out_channels": 5, "text_dim": 8, "eps": 1e-5}, (1, 2, 2), 1, 2),
    "head_dim": ({"num_attention_heads": 1, "attention_head_dim": 26, "num_layers": 1}, (5, 4, 4), 16, 2),
}


def difference(a, b):
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def write(path, arrays):
    np.savez(path, **arrays)
    return path


def test_output_equals_the_recorded_one():
    file = wan.load_npz(GOLDEN)
    assert difference(file.run(), file.output) < TOLERANCE


def test_the_independent_implementation_equals_the_recorded_output():
    with np.load(GOLDEN) as arrays:
        assert difference(wan_reference.run(dict(arrays), {}), arrays["output"]) < 1e-5


@pytest.mark.parametrize("case", OTHER_SIZES)
def test_every_size_comes_from_the_file(tmp_path, case):
    config, latent, text_length, batch = OTHER_SIZES[case]
    arrays = wan_reference.random_file(config, latent, text_length, batch, seed=1)
    output = np.asarray(wan.load_npz(write(tmp_path / "wan.npz", arrays)).run())
    expected = wan_reference.run(arrays, config)
    assert output.shape == expected.shape
    assert difference(output, expected) < TOLERANCE


def test_the_kernel_computes_what_exact_attention_does(tmp_path):
    """Pallas splash attention, interpreted: padded queries and masked keys change nothing."""
    config = {"num_attention_heads": 2, "attention_head_dim": 128, "num_layers": 1}
    file = wan.load_npz(write(tmp_path / "wan.npz", wan_reference.random_file(config, (3, 10, 18), 9, 1, seed=2)))
    assert difference(file.run(attention_impl="interpret"), file.run()) < TOLERANCE


@pytest.mark.parametrize(("heads", "queries", "keys"), [(1, 512, 512), (3, 1024, 1536), (5, 4608, 75776)])
def test_the_mask_that_hides_nothing_is_the_kernels_full_mask(heads, queries, keys):
    masks = pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask")
    process = importlib.import_module(masks.__name__ + "_info").process_mask
    full = masks.MultiHeadMask([masks.FullMask((queries, keys))] * heads)
    (ours, function), (theirs, other) = process(every_key(heads, queries, keys), (512, 512)), process(full, (512, 512))
    assert function is other is None
    for mine, its in zip(ours, theirs, strict=True):
        assert (mine is None) == (its is None)
        assert mine is None or (mine.dtype == its.dtype and np.array_equal(mine, its))


def changed(**changes):
    """The config lines of the recorded file with some replaced; None drops one."""
    with np.load(GOLDEN) as arrays:
        lines = dict(str(line).split("=", 1) for line in arrays["config"])
    lines.update(changes)
    return [f"{key}={value}" for key, value in lines.items() if value is not None]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (changed(qk_norm="layer_norm"), "qk_norm must be rms_norm_across_heads"),
        (changed(cross_attn_norm="False"), "cross_attn_norm must be True"),
        (changed(image_dim="1280"), "unknown ['image_dim']"),
        (changed(ffn_dim=None), "missing ['ffn_dim']"),
        (changed(num_layers="two"), "num_layers=two"),
        (changed(patch_size="1,2"), "patch_size needs three sizes"),
        (changed(eps="nan"), "eps lies between 0 and 1"),
        ([*changed(), "eps"], "not key=value"),
        ([*changed(), "eps=1"], "there twice"),
    ],
)
def test_a_config_this_model_cannot_do_is_refused(lines, said):
    with pytest.raises(InvalidRequest) as error:
        wan.read_config(lines)
    assert said in str(error.value)


def without(name):
    return lambda arrays: arrays.pop(name)


def replaced(name, value):
    return lambda arrays: arrays.update({name: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("param:blocks.1.attn2.to_k.bias"), "'blocks.1.attn2.to_k.bias' is missing"),
        (without("text"), "'text' is missing"),
        (without("config"), "'config' is missing"),
        (replaced("param:proj_out.weight", np.zeros((64, 65))), "(64, 65); its config wants (64, 64)"),
        (replaced("param:patch_embedding.weight", np.zeros((64, 64))), "its config wants (64, 16, 1, 2, 2)"),
        (replaced("param:blocks.2.norm2.weight", np.zeros(64)), "blocks.2.norm2.weight"),
        (replaced("mask", np.zeros(3)), "unknown meaning: mask"),
        (replaced("latents", np.zeros((2, 16, 3, 7, 12))), "no multiple of the patch"),
        (replaced("latents", np.zeros((3, 16, 3, 8, 12))), "batches of 3, 2 and 2"),
        (replaced("latents", np.zeros((16, 3, 8, 12))), "must have 5 dimensions"),
        (replaced("text", np.zeros((2, 7, 31))), "text_dim = 32"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, change, said):
    with np.load(GOLDEN) as data:
        arrays = dict(data)
    change(arrays)
    with pytest.raises(InvalidRequest) as error:
        wan.load_npz(write(tmp_path / "wan.npz", arrays))
    assert said in str(error.value)


STOCK = {
    "batch": ["data"],
    "sequence": ["context"],
    "embed": ["context", "fsdp"],
    "heads": ["tensor"],
    "mlp": ["tensor"],
}
# mesh sizes of data, fsdp, context, tensor; attention; rules. 45 tokens and a text of 7 divide by none of them.
SHARDINGS = [
    ((2, 1, 4, 1), "gathered", STOCK),
    ((1, 1, 8, 1), "gathered", STOCK),
    ((2, 1, 2, 2), "gathered", STOCK),
    ((1, 2, 2, 2), "gathered", STOCK),
    ((1, 1, 2, 4), "gathered", STOCK),
    ((2, 1, 4, 1), "ulysses", STOCK),
    ((1, 1, 8, 1), "ulysses", STOCK),
    ((1, 2, 2, 2), "ulysses", STOCK),
    ((1, 1, 4, 2), "ulysses", STOCK | {"embed": ["fsdp"], "mlp": ["context", "tensor"]}),
    ((1, 1, 4, 2), "gathered", STOCK | {"embed": [], "heads": ["tensor"], "mlp": []}),
    ((2, 2, 2, 1), "gathered", STOCK | {"embed": ["data"], "heads": ["fsdp"], "mlp": ["fsdp", "context"]}),
    ((2, 2, 1, 2), "gathered", STOCK | {"batch": ["data", "fsdp"], "embed": ["data"]}),
    ((1, 2, 2, 2), "ulysses", STOCK | {"sequence": ["fsdp", "context"], "embed": ["context"]}),
    ((1, 8, 1, 1), "gathered", STOCK),
]


@pytest.mark.parametrize(
    "shardings", [SHARDINGS[1::4], pytest.param(SHARDINGS, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_output_does_not_depend_on_the_sharding(tmp_path, shardings):
    """Every attention kind on several meshes, tokens that no mesh divides, against one device."""
    arrays = wan_reference.random_file({"num_attention_heads": 8, "attention_head_dim": 12}, (3, 10, 6), 7, 4, seed=3)
    path = write(tmp_path / "wan.npz", arrays)
    script = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh
from aoizora.models import Sharding, wan
file = wan.load_npz(sys.argv[1])
alone = np.asarray(file.run())
names = ("data", "fsdp", "context", "tensor")
for sizes, attention, rules in json.loads(sys.argv[2]):
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), names)
    candidate = {"mesh": [{"name": n, "size": s} for n, s in zip(names, sizes)], "rules": rules, "attention": attention}
    output = file.run(Sharding(mesh, candidate))
    assert len(output.sharding.device_set) == 8
    print(float(np.abs(np.asarray(output) - alone).max()), float(np.abs(alone).max()))
"""
    # Without LLVM's optimizations, whose time is most of the test's.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    flags += " --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), json.dumps(shardings)],
        env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(lines) == len(shardings)
    for sharding, (worst, largest) in zip(shardings, lines, strict=True):
        assert worst < TOLERANCE, sharding
        assert largest > 0.1
