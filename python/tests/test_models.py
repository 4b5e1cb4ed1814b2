"""The proxy a candidate is judged by: its arguments, its shardings, and what the real compiler makes of its loop."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter

import jax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from aoizora import _core
from aoizora.compiler import dump
from aoizora.errors import InvalidRequest
from aoizora.models import Sharding, build_step

AXES = ("data", "fsdp", "context", "tensor")
STOCK = {
    "batch": ["data"],
    "sequence": ["context"],
    "embed": ["context", "fsdp"],
    "heads": ["tensor"],
    "mlp": ["tensor"],
}


def candidate(sizes, rules=STOCK, attention="gathered", **more):
    mesh = [{"name": name, "size": size} for name, size in zip(AXES, sizes, strict=True)]
    return {"mesh": mesh, "rules": rules, "attention": attention, **more}


def sharding(sizes, rules=STOCK, **more):
    return Sharding(AbstractMesh(sizes, AXES), candidate(sizes, rules, **more))


def test_spec_names_the_mesh_axes_of_each_dimension():
    of = sharding((2, 2, 4, 1))
    assert of.spec([None, "embed", "heads"]) == P(None, ("context", "fsdp"), None)
    assert of.spec(["batch", "sequence", "text"]) == P("data", "context", None)
    assert of.factor("embed") == 8
    assert of.factor("heads") == of.factor("text") == of.factor(None) == 1


def test_a_mesh_axis_divides_a_tensor_once():
    of = sharding((1, 2, 2, 2), STOCK | {"heads": ["context", "tensor"], "mlp": ["fsdp"]})
    with pytest.raises(InvalidRequest, match="mesh axis twice"):
        of.spec(["embed", "heads"])
    # The sequence keeps what it shares with the heads, wherever it stands.
    assert of.activation_spec(["batch", "sequence", "heads"]) == P(None, "context", "tensor")
    assert of.activation_spec(["batch", "heads", "sequence", None]) == P(None, "tensor", "context", None)


@pytest.mark.parametrize("length", [1, 7, 45, 512, 2340, 9360, 17160, 75600])
@pytest.mark.parametrize("context", [1, 2, 3, 8, 16])
def test_padded_lengths_divide_evenly_and_waste_little(length, context):
    of = sharding((1, 1, context, 1))
    padded = of.padded(length, "sequence")
    assert padded % context == 0
    assert length <= padded < length + max(of.key_block * context, 8 * context)
    if context in (1, 2, 8, 16) and length > of.key_block:
        assert padded % of.key_block == 0
        assert padded - length < of.key_block


@pytest.mark.parametrize(
    ("sizes", "changes", "said"),
    [
        ((2, 1, 4, 1), {"attention": "ring"}, "unknown attention 'ring'"),
        ((2, 1, 4, 1), {"rules": {"embed": ["model"]}}, "names 'model'"),
        ((2, 1, 4, 1), {"rules": {"embed": ["data", "data"]}}, "twice"),
        ((2, 1, 4, 1), {"blocks": {"queries": 100, "keys": 512}}, "multiple of 128"),
        ((2, 1, 4, 1), {"mesh": [{"name": "data", "size": 8}]}, "mesh given"),
    ],
)
def test_a_malformed_candidate_is_refused(sizes, changes, said):
    with pytest.raises(InvalidRequest) as error:
        Sharding(AbstractMesh(sizes, AXES), candidate(sizes) | changes)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("sizes", "rules", "attention", "said"),
    [
        ((4, 1, 1, 1), STOCK, "gathered", "4 ways do not divide batch of 2"),
        ((1, 1, 1, 16), STOCK, "gathered", "16 ways do not divide heads of 40"),
        ((1, 1, 16, 1), STOCK, "ulysses", "16 ways"),
        ((1, 1, 8, 2), STOCK, "ulysses", "16 ways"),
    ],
)
def test_a_candidate_that_does_not_divide_the_model_is_refused(sizes, rules, attention, said):
    with pytest.raises(InvalidRequest) as error:
        build_step({}, candidate(sizes, rules, attention), AbstractMesh(sizes, AXES), 3)
    assert said in str(error.value)


@pytest.mark.parametrize("model", _core.model_names())
def test_arguments_are_the_tables(model):
    """Parameters have the table's names, sizes and axes, stacked along the layers; inputs are the request's."""
    request = {"model": model, "height": 720, "width": 1280, "frames": 41, "videos": 2}
    sizes = (2, 1, 2, 2)
    _, (params, latents, timestep, text) = build_step(request, candidate(sizes), AbstractMesh(sizes, AXES), layers=3)
    table = json.loads(_core.make_workload(json.dumps(request)))
    assert list(params) == [tensor["name"] for tensor in table["weights"]]
    for tensor in table["weights"]:
        shape = tuple(dim["size"] for dim in tensor["dims"])
        spec = [STOCK.get(dim["axis"], []) for dim in tensor["dims"]]
        if tensor["repeat"] > 1:
            shape, spec = (3, *shape), [[], *spec]
        given = params[tensor["name"]]
        assert given.shape == shape
        factors = [math.prod(dict(zip(AXES, sizes, strict=True))[name] for name in names) for names in spec]
        assert given.sharding.shard_shape(shape) == tuple(s // f for s, f in zip(shape, factors, strict=True))
    assert latents.shape == (4, 16, 11, 90, 160)
    assert timestep.shape == (4,)
    assert text.shape == (4, 512, 4096)
    assert latents.sharding.shard_shape(latents.shape)[0] == 2


def calls_of(jaxpr, primitive):
    """Every equation of a primitive, in the functions it calls too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == primitive:
            yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from calls_of(inner, primitive)


@pytest.mark.parametrize(
    ("attention", "context", "query", "key"),
    [
        ("gathered", 4, (2, 40, 4608, 128), (2, 40, 17408, 128)),
        ("ulysses", 4, (2, 10, 17408, 128), (2, 10, 17408, 128)),
        ("gathered", 1, (2, 40, 17408, 128), (2, 40, 17408, 128)),
    ],
)
def test_opaque_attention_has_the_kernels_shapes(attention, context, query, key):
    """17,160 tokens: one call a site, over what one device holds, lengths padded to the kernel's blocks of 512."""
    sizes = (1, 1, context, 1)
    step, args = build_step(
        {"frames": 41}, candidate(sizes, attention=attention), AbstractMesh(sizes, AXES), 3, "opaque"
    )
    calls = list(calls_of(jax.make_jaxpr(step)(*args).jaxpr, "ffi_call"))
    assert [call.params["target_name"] for call in calls] == ["aoizora.attention"] * 2
    shapes = [[value.aval.shape for value in (*call.invars, *call.outvars)] for call in calls]
    text_query = (2, 40, 17408 // context + -(17408 // context) % 512, 128)
    text = (2, 40, 512, 128)
    assert shapes == [[query, key, key, query], [text_query, text, text, text_query]]


def test_a_site_of_attention_is_whole():
    """In a shared trace attention has the shapes of the program, whatever a candidate divides."""
    request = {"frames": 41}
    of = candidate((1, 2, 4, 1), STOCK | {"heads": ["fsdp"]})
    stands, impl = build_step.stand_in(request, of, "opaque")
    mesh = AbstractMesh(tuple(a["size"] for a in stands["mesh"]), tuple(a["name"] for a in stands["mesh"]))
    step, args = build_step(request, stands, mesh, 3, impl)
    calls = list(calls_of(jax.make_jaxpr(step)(*args).jaxpr, "ffi_call"))
    assert [call.params["target_name"] for call in calls] == ["aoizora.attention.site"] * 2
    whole, text = (2, 40, 17408, 128), (2, 40, 512, 128)
    shapes = [[value.aval.shape for value in (*call.invars, *call.outvars)] for call in calls]
    assert shapes == [[whole] * 4, [whole, text, text, whole]]


def test_a_kernel_in_a_shared_trace_sees_what_one_device_holds():
    rules = STOCK | {"heads": ["context", "fsdp"], "mlp": ["data"]}
    stands, impl = build_step.stand_in({}, candidate((2, 2, 2, 1), rules), "tpu")
    assert impl == "tpu"
    # The sequence keeps the context axis.
    sizes = {axis["name"].removeprefix("stand_in_"): axis["size"] for axis in stands["mesh"]}
    assert sizes == {"batch": 2, "sequence": 2, "heads": 2, "embed": 1, "mlp": 1, "rest": 1}


LAYERS = """
import sys, json
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh
from aoizora.models import build_step
candidate, layers, folder = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
slice = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4")
devices = sorted(slice.devices, key=lambda device: device.coords[::-1])
mesh = Mesh(np.array(devices).reshape([a["size"] for a in candidate["mesh"]]), [a["name"] for a in candidate["mesh"]])
step, args = build_step({}, candidate, mesh, layers, "tpu")
jax.jit(step).lower(*args).compile(compiler_options={"xla_dump_to": folder})
"""


def optimized(folder, candidate, layers):
    """The program after XLA:TPU's HLO passes, without waiting for code."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", LAYERS, json.dumps(candidate), str(layers), str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not dump.passes_done(folder):
            try:
                _, complaint = process.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            assert process.returncode == 0, complaint
            break
    finally:
        process.kill()
        process.communicate()
    found = dump.read(folder, dump.PASSES_TEXT)
    assert found is not None
    return found.text


def loop_body(program):
    """The instructions of the largest loop's body, with those of the computations it calls."""
    computations, name = {}, ""
    for line in program.splitlines():
        if opened := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = opened[1]
            computations[name] = []
        elif line.startswith("  "):
            computations[name].append(line)

    def closure(root):
        seen, todo = [], [root]
        while todo:
            at = todo.pop()
            if at in seen or at not in computations:
                continue
            seen.append(at)
            for line in computations[at]:
                todo += re.findall(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)", line)
        return [line for each in seen for line in computations[each]]

    return max((closure(body) for body in set(re.findall(r"body=%?([\w.\-]+)", program))), key=len)


def opcodes(lines):
    return Counter(found[1] for line in lines if (found := re.search(r" = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\(", line)))


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "attention"), [((2, 1, 4, 1), "gathered"), ((1, 1, 4, 2), "ulysses")])
def test_the_body_of_three_layers_is_that_of_forty(tmp_path, sizes, attention):
    pytest.importorskip("libtpu")
    three, forty = (
        opcodes(loop_body(optimized(tmp_path / str(n), candidate(sizes, attention=attention), n))) for n in (3, 40)
    )
    assert sum(three.values()) > 500
    assert three == forty


@pytest.mark.slow
def test_a_layer_gathers_each_weight_once_and_keys_and_values(tmp_path):
    """Data 2, context 4: the eight square weights less the text's keys and values, whose products XLA reduces instead;
    the two of the MLP; K and V; and no other collective of weight."""
    pytest.importorskip("libtpu")
    body = loop_body(optimized(tmp_path / "dump", candidate((2, 1, 4, 1)), 3))
    # An asynchronous all-gather is printed in each computation that carries it; its chain_id tells which are one.
    gathers = {}
    for at, line in enumerate(body):
        if found := re.search(r" = bf16\[([\d,]+)\]\S* all-gather\(", line):
            chain = re.search(r'chain_id="(\d+)"', line)
            gathers[chain[1] if chain else f"alone {at}"] = found[1]
    expected = Counter({"1,5120,5120": 6, "1,5120,13824": 1, "1,13824,5120": 1, "1,40,9728,128": 2})
    assert Counter(gathers.values()) == expected
    reduces = [line for line in body if re.search(r" all-reduce(-start)?\(", line)]
    assert len(reduces) == 1
    assert "bf16[1,512,5120]" in reduces[0]
    assert not re.search(r" (all-to-all|collective-permute)(-start)?\(", "\n".join(body))
