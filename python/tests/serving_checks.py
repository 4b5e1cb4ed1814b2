"""What is to hold inside a process that has four CPU devices; test_serving.py runs these and reports each.

`python serving_checks.py PLAN` prints JSON: name of each check -> what went wrong, "" if nothing.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import aoizora
from aoizora import InvalidRequest, Plan, cache, cli
from aoizora.models import wan
from aoizora.serving import resolve

PLAN = Path(sys.argv[1])


def config(**changes: Any) -> aoizora.Config:
    return aoizora.build_config(**{"model_name": "wan2.1-1.3b", "chips": 4, **changes})


def in_cache() -> None:
    cache.make_folder()
    cache.store(resolve._key(config().request), Plan.load(PLAN))


def surroundings() -> tuple[Any, ...]:
    """All that a call may leave behind: meshes of both kinds, flax's rules, the active strategy."""
    from aoizora.serving.strategy import current

    return (jax.sharding.get_mesh(), jax.sharding.get_abstract_mesh(), jax.interpreters.pxla.thread_resources.env,
            current.get())  # fmt: skip


def check_a_call_runs_under_the_plans_mesh_and_leaves_none() -> None:
    before = surroundings()
    seen = []

    @aoizora.auto_shard()
    def generate(config: Any, factor: int = 1) -> jax.Array:
        """Generates."""
        aoizora.apply_strategy_to_config(config)
        assert config.plan is config.strategy.plan
        seen.append(jax.sharding.get_mesh())
        constrained = jax.jit(lambda x: jax.lax.with_sharding_constraint(x * factor, PartitionSpec("context")))
        return constrained(jnp.ones(8))

    result = generate(config(), factor=3)
    assert float(result.sum()) == 24
    assert (generate.__name__, generate.__doc__) == ("generate", "Generates.")
    plan = Plan.load(PLAN)
    assert dict(seen[0].shape) == plan.mesh_shape
    order = [device.id for device in seen[0].devices.flat]
    assert order == plan.data["best"]["placement"]["device_ids"]
    assert surroundings() == before


def check_later_calls_neither_plan_nor_read_nor_trace() -> None:
    @aoizora.auto_shard()
    def generate(config: Any) -> Any:
        return aoizora.active_strategy()

    first = generate(config())
    forbidden = {(builtins, "open"), (Plan, "load"), (Plan, "loads"), (cache, "lookup"), (resolve, "plan_for")}
    kept = [(where, name, getattr(where, name)) for where, name in forbidden]
    again = config()

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a later call must not come here")

    try:
        for where, name, _ in kept:
            setattr(where, name, refuse)
        assert generate(again) is first
    finally:
        for where, name, value in kept:
            setattr(where, name, value)


def check_an_exception_leaves_the_context_as_it_was() -> None:
    before = surroundings()

    @aoizora.auto_shard()
    def generate(config: Any) -> None:
        raise KeyError("theirs")

    for _ in range(2):
        with pytest.raises(KeyError, match="theirs"):
            generate(config())
        assert surroundings() == before


def check_nested_and_recursive_calls_come_back_to_the_outer_strategy() -> None:
    other = Mesh(np.array(jax.devices()).reshape(4), ("mine",))

    @aoizora.auto_shard()
    def inner(config: Any, depth: int) -> None:
        own = surroundings()
        if depth:
            inner(config, depth - 1)
            assert surroundings() == own

    @aoizora.auto_shard(plan=PLAN)
    def outer(config: Any) -> None:
        own = surroundings()
        inner(config, 2)
        assert surroundings() == own
        with jax.set_mesh(other):
            theirs = surroundings()
            inner(config, 1)
            assert surroundings() == theirs
        assert surroundings() == own

    before = surroundings()
    outer(config())
    assert surroundings() == before


def check_threads_each_have_their_own_and_plan_once() -> None:
    calls = []
    original = resolve.plan_for

    def counted(*arguments: Any) -> Plan:
        calls.append(arguments)
        time.sleep(0.05)
        return original(*arguments)

    @aoizora.auto_shard()
    def generate(config: Any) -> Any:
        barrier.wait(10)  # all inside at once
        return aoizora.active_strategy()

    barrier = threading.Barrier(6)
    results: list[Any] = []
    asked = config()

    def run() -> None:
        before = surroundings()
        results.append(generate(asked))
        assert surroundings() == before
        results.append(None)

    resolve.plan_for = counted
    try:
        threads = [threading.Thread(target=run) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    finally:
        resolve.plan_for = original
    assert len(results) == 12
    assert len({id(r) for r in results if r is not None}) == 1
    assert len(calls) == 1


def check_generators_and_coroutines_hold_the_mesh_only_while_they_run() -> None:
    before = surroundings()
    plain = aoizora.auto_shard()(lambda config: jax.sharding.get_mesh())(config())

    @aoizora.auto_shard()
    def steps(config: Any) -> Any:
        got = yield jax.sharding.get_mesh()
        assert jax.sharding.get_mesh() == plain
        try:
            yield got
        except KeyError:
            yield jax.sharding.get_mesh()
        return "end"

    generator = steps(config())
    assert next(generator) == plain
    assert surroundings() == before
    assert generator.send(5) == 5
    assert generator.throw(KeyError()) == plain
    assert surroundings() == before
    assert list(generator) == []

    @aoizora.auto_shard()
    async def serve(config: Any) -> Any:
        meshes = []
        for _ in range(3):
            meshes.append(jax.sharding.get_mesh())
            await asyncio.sleep(0)
        return meshes

    @aoizora.auto_shard
    async def fail(config: Any) -> None:
        await asyncio.sleep(0)
        raise KeyError("theirs")

    async def beside() -> list[Any]:
        seen = []
        for _ in range(6):
            seen.append(surroundings())
            await asyncio.sleep(0)
        return seen

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(serve(config()), serve(config()), beside(), fail(config()), return_exceptions=True)

    one, two, seen, failed = asyncio.run(all_of_them())
    assert one == two == [plain] * 3
    assert all(s == before for s in seen)
    assert isinstance(failed, KeyError)


def check_methods_and_named_arguments_are_found() -> None:
    class Server:
        @aoizora.auto_shard()
        def generate(self, prompt: str, *, config: Any) -> Any:
            return aoizora.active_strategy().plan.data["request"]["model"]

    assert Server().generate("a cat", config=config()) == "wan2.1-1.3b"


def check_a_plan_given_as_a_file_needs_no_config_and_is_checked_against_one() -> None:
    @aoizora.auto_shard(plan=PLAN)
    def generate(*_: Any) -> Any:
        return aoizora.active_strategy().plan.data

    assert generate() == Plan.load(PLAN).data
    assert generate("a prompt") == Plan.load(PLAN).data
    assert generate(config(steps=4)) == Plan.load(PLAN).data
    for changes in ({"shape": (720, 1280, 21)}, {"cfg": False}, {"model_name": "wan2.1"}, {"videos": 2}):
        with pytest.raises(InvalidRequest, match="another request"):
            generate(config(**changes))


def check_a_call_without_a_request_says_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"auto_shard\(plan="):
        aoizora.auto_shard()(lambda prompt: None)("a cat")
    for call in (aoizora.active_strategy, lambda: aoizora.apply_strategy_to_config(config())):
        with pytest.raises(InvalidRequest, match=r"@aoizora\.auto_shard\(\)"):
            call()


def check_the_number_of_devices_must_be_the_plans() -> None:
    @aoizora.auto_shard(plan=PLAN, devices=jax.devices()[:3])
    def generate() -> None: ...

    said = "4 devices of v5e:2x2; here are 3 .*xla_force_host_platform_device_count=4"
    with pytest.raises(InvalidRequest, match=said):
        generate()


def check_flags_and_libtpu_that_differ_are_told_once() -> None:
    data = {**Plan.load(PLAN).data, "compiler_options": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}}
    data["versions"] = ["libtpu=0.0.1"]

    @aoizora.auto_shard(plan=Plan(data))
    def generate() -> dict[str, str]:
        return aoizora.active_strategy().compiler_options

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert generate() == data["compiler_options"]
        generate()
    told = [str(w.message) for w in caught if w.category is RuntimeWarning]
    assert len(told) == 2, told
    line = "export LIBTPU_INIT_ARGS=--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000"
    assert line in told[0]
    assert "libtpu 0.0.1" in told[1]


def check_the_strategys_shardings_run_the_model_as_unsharded() -> None:
    """Wan under the decorated call, sharded by the plan itself, equals Wan on one device."""
    golden = wan.load_npz(Path(__file__).parents[2] / "tests" / "data" / "wan_tiny.npz")

    @aoizora.auto_shard(plan=PLAN)
    def generate() -> jax.Array:
        return golden.run(aoizora.active_strategy().model_sharding)

    output = generate()
    assert len(output.sharding.device_set) == 4
    assert float(np.abs(np.asarray(output) - np.asarray(golden.run())).max()) < 1e-4


def check_measure_runs_the_best_plans_on_the_devices_that_are_here() -> None:
    plan = Plan.load(PLAN)
    out = PLAN.with_name("measured.json")
    assert cli.main(["measure", str(PLAN), "--top", "2", "--repeats", "3", "--layers", "2", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["devices"], found["layers"], found["small"]) == ("4 x cpu", 2, True)
    entries = [plan.data["best"], plan.data["runners_up"][0]]
    for entry, measured in zip(entries, found["plans"], strict=True):
        assert measured["sharding"] == entry["sharding"]
        assert len(measured["seconds"]) == 3
        assert min(measured["seconds"]) > 0
        assert measured["median_seconds"] == sorted(measured["seconds"])[1]
        skipped = (plan.data["layers"] - 2) * entry["passes_block_seconds"]
        assert measured["predicted_seconds"] == entry["passes_step_seconds"] - skipped
    assert found["correlation"] is None or abs(found["correlation"]) == pytest.approx(1)


if __name__ == "__main__":
    in_cache()
    checks.run(globals())
