"""plan_program: any JAX program's arguments become the planner's table, its one trace every candidate's program."""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import aoizora
import aoizora.integrations.maxdiffusion
from aoizora import InvalidRequest, Plan, _core, logical_axes, program_planning
from aoizora.compiler import given, private
from aoizora.report import terminal

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "program"
sys.path.insert(0, str(EXAMPLE))
import transformer  # noqa: E402

TINY = transformer.Sizes(batch=2, length=32, embed=64, heads=4, head_dim=16, mlp=128, vocabulary=128, layers=2)
NOTHING = logical_axes.wanted(None, None, None)


def shaped(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def table(args: tuple[Any, ...], axes: Any = None, **said: Any) -> dict[str, Any]:
    rules = logical_axes.wanted(said.get("kinds"), said.get("sizes"), said.get("like"))
    found = logical_axes.arguments((args, {}), None if axes is None else (axes, None), rules)
    made = logical_axes.table("program", found, [], rules)
    _core.enumerate(json.dumps(made), "v5e:2x2", "{}")  # the library reads it
    return made


def kinds(made: dict[str, Any]) -> dict[str, tuple[int, str]]:
    return {axis["name"]: (axis["size"], axis["kind"]) for axis in made["axes"]}


def training(sizes: transformer.Sizes = TINY) -> tuple[Callable[..., Any], tuple[Any, Any], logical_axes.Wanted]:
    tokens = shaped(sizes.batch, sizes.length, dtype=jnp.int32)
    rules = logical_axes.wanted(transformer.KINDS, None, transformer.LIKE)
    return transformer.train_step, (transformer.state_shapes(sizes), tokens), rules


# The table


def test_arguments_and_their_axes_become_the_table() -> None:
    _, args, _ = training()
    made = table(args, (transformer.STATE_AXES, transformer.TOKEN_AXES), kinds=transformer.KINDS, like=transformer.LIKE)
    assert kinds(made) == {
        "mlp": (128, "weight"), "embed": (64, "weight"), "layers": (2, "whole"), "heads": (4, "weight"),
        "head_dim": (16, "whole"), "batch": (2, "batch"), "sequence": (32, "sequence"),
    }  # fmt: skip
    weights = {weight["name"]: weight for weight in made["weights"]}
    assert len(weights) == len(jax.tree.leaves(args))
    assert [dim["axis"] for dim in weights["[0]['mean']['embedding']"]["dims"]] == ["mlp", "embed"]
    assert weights["[0]['count']"]["dims"] == []
    assert weights["[1]"]["dtype"] == "s32"
    assert made["whole_program"] is True


def test_kinds_are_the_callers_then_the_names_then_where_an_axis_is() -> None:
    args = {"w": shaped(16, 8), "x": shaped(4, 6, 8), "y": shaped(3, 10)}, shaped(4, 5)
    axes = {"w": ("in", "out"), "x": ("batch", "seq", "out"), "y": ("layer", "kv_length")}, ("my_batch", "feature")
    assert kinds(table(args, axes)) == {
        "in": (16, "weight"), "out": (8, "weight"), "batch": (4, "batch"), "seq": (6, "sequence"),
        "layer": (3, "whole"), "kv_length": (10, "sequence"), "my_batch": (4, "batch"), "feature": (5, "whole"),
    }  # fmt: skip
    said = kinds(table(args, axes, kinds={"feature": "weight", "seq": "whole"}))
    assert (said["feature"], said["seq"]) == ((5, "weight"), (6, "whole"))


def test_the_unit_that_must_divide_is_the_size_the_callers_or_the_common_divisor_of_alike_axes() -> None:
    args, axes = (shaped(64, 12), shaped(12, 18)), (("heads", "a"), ("a", "b"))
    assert kinds(table(args, axes))["heads"] == (64, "weight")
    assert kinds(table(args, axes, sizes={"heads": 4}))["heads"] == (4, "weight")
    assert kinds(table(args, axes, like={"b": "heads"}))["heads"] == (2, "weight")


@pytest.mark.parametrize(
    ("axes", "said", "message"),
    [
        ((("a", "b"), ("c", "b")), {}, r"axis 'b' has the size 12 on \[0\] and 18 on \[1\].*sizes="),
        ((("a", "b"), ("b", "b")), {}, r"\[1\] has the axis 'b' on two dimensions"),
        ((("a", "b"), ("b",)), {}, r"\[1\] has 2 dimensions \(12, 18\) and the names \('b',\)"),
        ((("a", "b"), (("b", "c"), None)), {}, r"give each dimension one name or None"),
        ((("a", "b"), ("b", 'c"}')), {}, r"is no name of a logical axis"),
        ((("a", "b"), "bc"), {}, r"axes for \[1\] is 'bc'"),
        ((None, None), {}, r"no argument names an axis that may be divided"),
        ((("a", "b"), None), {"kinds": {"c": "weight"}}, r"names the axis 'c'; there are a, b"),
        ((("a", "b"), None), {"kinds": {"a": "wieght"}}, r"allowed are weight, batch, sequence, whole"),
        ((("a", "b"), None), {"sizes": {"a": 7}}, r"sizes\['a'\] is 7, but \[0\] has 64 of it"),
        ((("a", "b"), None), {"sizes": {"a": 0}}, r"whole number above 0"),
        ((("a", "b"), None), {"like": {"a": "b", "c": "a"}}, r"which is like 'b'"),
        ((("a", "b"), None), {"like": {"a": "b"}, "kinds": {"a": "weight"}}, r"give kind and size of that one"),
        ((("a", "b"), None), {"like": {"a": "b"}}, r"\[0\] has the axis 'b' on two dimensions"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(axes: Any, said: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        table((shaped(64, 12), shaped(12, 18)), axes, **said)


def test_axes_must_have_the_arguments_structure() -> None:
    with pytest.raises(InvalidRequest, match=r"axes has nothing for \[0\]\['b'\]"):
        table(({"a": shaped(4), "b": shaped(4)},), ({"a": ("x",)},))
    with pytest.raises(InvalidRequest, match="give the arguments as a tuple"):
        aoizora.plan_program(abs, shaped(4), "v5e:2x2")
    with pytest.raises(InvalidRequest, match="one entry for each of the 1 arguments"):
        aoizora.plan_program(abs, (shaped(4),), "v5e:2x2", axes=("x", "y"))


def test_flax_metadata_names_the_dimensions() -> None:
    nn = pytest.importorskip("flax.linen")

    class Layer(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
        def __call__(self, x: jax.Array) -> jax.Array:
            up = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp"))
            down = nn.with_logical_partitioning(nn.initializers.ones, ("mlp", "embed"))
            x = x @ self.param("up", up, (8, 32))
            x = nn.with_logical_constraint(x, ("batch", "hidden"))
            return x @ self.param("down", down, (32, 8))

    model, x = Layer(), shaped(4, 8)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    rules = logical_axes.wanted(None, None, {"hidden": "mlp"})
    tree = ((params, x), {})
    found = logical_axes.arguments(tree, ((None, ("batch", None)), None), rules)
    unboxed, specs = nn.unbox(params), nn.get_partition_spec(params)
    assert [each.names for each in logical_axes.arguments(((unboxed,), {}), ((specs,), None), rules)] == [
        ("mlp", "embed"),
        ("embed", "mlp"),
    ]
    assert {each.path: each.names for each in found} == {
        "[0]['params']['down'].value": ("mlp", "embed"),
        "[0]['params']['up'].value": ("embed", "mlp"),
        "[1]": ("batch", None),
    }
    traced = program_planning._Trace(model.apply, tree, found, rules, 4)
    # The unboxed parameters are constrained to their names, too.
    assert {(each.shape, each.names) for each in traced.constraints} == {
        ((4, 32), ("batch", "mlp")), ((8, 32), ("embed", "mlp")), ((32, 8), ("mlp", "embed")),
    }  # fmt: skip
    assert '<@mesh, [{"stand_in_batch"}, {"stand_in_mlp"}]>' in traced.bare


def test_flax_nnx_variables_name_theirs() -> None:
    nnx = pytest.importorskip("flax.nnx")
    kernel = nnx.with_partitioning(nnx.initializers.ones_init(), ("embed", "mlp"))
    with pytest.importorskip("flax").config.temp_flip_flag("always_shard_variable", False):
        abstract = nnx.eval_shape(lambda: nnx.Linear(8, 32, kernel_init=kernel, rngs=nnx.Rngs(0)))
    found = logical_axes.arguments(((nnx.state(abstract),), {}), None, NOTHING)
    assert [each.names for each in found if each.shape == (8, 32)] == [("embed", "mlp")]


def test_flax_rules_leave_an_activation_what_its_other_axes_do_not_hold() -> None:
    nn = pytest.importorskip("flax.linen")
    program = {
        "axes": [{"name": "mlp", "kind": "weight"}, {"name": "batch", "kind": "batch"}],
        "like": {"hidden": "mlp"},
    }
    rules = logical_axes.flax_rules(program, {"batch": ("data",), "mlp": ("data", "tensor")})

    def resolved(*names: str) -> PartitionSpec:
        spec: PartitionSpec = nn.logical_to_mesh_axes(names, rules)
        return spec

    assert resolved("batch", "hidden") == PartitionSpec("data", "tensor")
    assert resolved("hidden", "batch") == PartitionSpec("tensor", "data")
    assert resolved("mlp") == PartitionSpec(("data", "tensor"))


# The trace


def lowered(function: Callable[..., Any], tree: Any, found: list[Any], candidate: dict[str, Any]) -> str:
    """A trace of the candidate's own: its mesh, its specs."""
    mesh = AbstractMesh(*zip(*((axis["size"], axis["name"]) for axis in candidate["mesh"]), strict=True))
    sizes = dict(mesh.shape)
    left = iter(found)

    def divided(leaf: Any) -> Any:
        entries = [tuple(a for a in candidate["rules"].get(n, ()) if sizes[a] > 1) for n in next(left).names]
        sharding = NamedSharding(mesh, PartitionSpec(*entries))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    args, kwargs = jax.tree.map(divided, tree)
    with private.without_places(), jax.sharding.use_abstract_mesh(mesh):
        return str(jax.jit(function).trace(*args, **kwargs).lower(lowering_platforms=("tpu",)).as_text())


@functools.cache
def traced_training() -> tuple[Any, Any, Any, Any]:
    function, args, rules = training()
    tree = (args, {})
    found = logical_axes.arguments(tree, ((transformer.STATE_AXES, transformer.TOKEN_AXES), None), rules)
    return function, tree, found, program_planning._Trace(function, tree, found, rules, 8)


def test_each_candidates_program_is_that_of_a_trace_of_its_own() -> None:
    function, tree, found, traced = traced_training()
    _, _, rules = training()
    made = logical_axes.table("step", found, traced.constraints, rules)
    every = [each["candidate"] for each in json.loads(_core.enumerate(json.dumps(made), "v5e:2x4", "{}"))["candidates"]]
    for candidate in random.Random(3).sample(every, 3):
        written = _core.annotate(traced.bare, json.dumps(candidate), False, ["batch", "sequence"])
        assert written == lowered(function, tree, found, candidate), candidate


def test_a_trace_leaves_jax_as_it_was_and_does_not_depend_on_the_machine() -> None:
    before = jax.config.jax_traceback_in_locations_limit
    _, _, _, traced = traced_training()
    assert jax.config.jax_traceback_in_locations_limit == before
    assert str(EXAMPLE) not in traced.named
    assert "dot_general" in traced.named


def test_what_the_function_may_not_do_is_refused() -> None:
    mesh = jax.make_mesh((1,), ("x",))

    def traced(function: Callable[..., Any]) -> Any:
        args = (shaped(4, 8),)
        found = logical_axes.arguments((args, {}), ((("batch", "embed"),), None), NOTHING)
        return program_planning._Trace(function, (args, {}), found, NOTHING, 4)

    def mapped(x: jax.Array) -> jax.Array:
        spec = PartitionSpec("stand_in_batch")
        return jax.shard_map(lambda y: y * 2, in_specs=spec, out_specs=spec)(x)

    with pytest.raises(InvalidRequest, match="shard_map"):
        traced(mapped)
    here = NamedSharding(mesh, PartitionSpec("x"))
    with pytest.raises(Exception, match=r".") as raised:
        traced(jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, here)))
    assert isinstance(raised.value, InvalidRequest) or "plan_program" in "".join(raised.value.__notes__)
    with pytest.raises(ZeroDivisionError) as own:
        traced(lambda x: x / (1 // 0))
    assert "plan_program" in "".join(own.value.__notes__)


def test_workers_read_the_text_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "bare").write_text("bare text")
    (tmp_path / "named").write_text("named text")
    request = {"folder": str(tmp_path), "first": ["b"], "program": "0"}
    assert given.given(request, "opaque") == ("bare text", ["b"])
    assert given.given(request, "tpu") == ("named text", ["b"])


# The plan

SETTINGS = {"survivor_fraction": 0.01, "survivor_floor": 1, "runners_up": 0, "finalists": 1, "windowed_einsum": False}
RUN = """
import json, sys
import jax
import transformer
from aoizora import Plan
sizes = transformer.Sizes(**json.loads(sys.argv[2]))
plan = Plan.load(sys.argv[1])
auto = (jax.sharding.AxisType.Auto,) * 4
mesh = jax.make_mesh(tuple(plan.mesh_shape.values()), tuple(plan.mesh_shape), auto)
print(json.dumps([transformer.run(sizes, 3, plan, mesh), transformer.run(sizes, 3, None)]))
"""


@pytest.mark.slow
def test_a_training_step_is_planned_by_the_real_compiler_and_runs_as_on_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess
    from dataclasses import asdict

    steps: list[str] = []
    # Few axes, so few shardings.
    monkeypatch.setattr(transformer, "LIKE", {"vocabulary": "mlp", "heads": "mlp"})
    monkeypatch.setattr(transformer, "KINDS", {"head_dim": "whole", "sequence": "whole"})

    def progress(stage: str, *_: Any) -> None:
        steps.append(stage)

    plan = transformer.plan_training(TINY, "v5e:2x4", settings=SETTINGS, progress=progress)
    again = transformer.plan_training(TINY, "v5e:2x4", settings=SETTINGS)
    assert again.data == plan.data, "from the cache"
    assert "stage 1: propagate" in steps
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").data == plan.data
    assert plan.data["best"]["verified"]
    # The batch does not divide by eight: weights are divided.
    assert any(any(entries) for name, entries in plan.data["parameters"].items() if name != "[1]")
    assert plan.data["program"]["like"] == transformer.LIKE
    predicted = plan.data["best"]["predicted"]
    assert predicted["step_seconds"] == predicted["block_seconds"] > 0
    assert predicted["outside_seconds"] == 0
    with pytest.raises(InvalidRequest, match="not of a video model"):
        _ = plan.request
    text = terminal.explain(plan)
    assert "train_step, v5e:2x4" in text
    assert "one step" in text
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *sys.path]),
    }
    command = [sys.executable, "-c", RUN, str(tmp_path / "plan.json"), json.dumps(asdict(TINY))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sharded, whole = json.loads(done.stdout.splitlines()[-1])
    assert sharded == pytest.approx(whole, rel=1e-4)
    assert sharded[-1] < sharded[0]


def test_a_plan_is_of_a_request_or_of_a_program(recorded_plan: Plan) -> None:
    data = {key: value for key, value in recorded_plan.data.items() if key != "request"}
    with pytest.raises(InvalidRequest, match='"request" with attention or a "program"'):
        Plan(data)
    program = {**data, "program": {"name": "mine", "axes": []}, "attention": None, "kernel_blocks": None}
    assert Plan(program).is_of_program
    with pytest.raises(InvalidRequest, match="of the program 'mine'"):
        aoizora.integrations.maxdiffusion.settings(Plan(program))
    with pytest.raises(InvalidRequest, match='"request" with attention or a "program"'):
        Plan({**recorded_plan.data, "attention": None})
