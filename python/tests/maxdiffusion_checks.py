"""Against MaxDiffusion itself, on 16 CPU devices: `python maxdiffusion_checks.py PLAN...` (plans for 16 devices) prints
JSON: name of each check -> what went wrong, "" if nothing."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from typing import Any

import checks
import pytest

import aoizora
from aoizora import InvalidRequest, Plan
from aoizora.integrations import maxdiffusion

PLANS = [Plan.load(path) for path in sys.argv[1:]]


def build(**extra: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return aoizora.build_config("wan2.1-1.3b", (480, 832, 21), chips=16, **extra)


def check_build_config_gives_its_own_config_with_ours_in_it() -> None:
    from maxdiffusion import pyconfig

    config = build(seed=7, prompt="a cat = a cat", lora_config={"rank": [3]}, names_which_can_be_saved=["a"])
    assert isinstance(config, pyconfig.HyperParameters)
    assert (config.height, config.width, config.num_frames) == (480, 832, 21)
    assert (config.seed, config.prompt, config.lora_config) == (7, "a cat = a cat", {"rank": [3]})
    assert config.names_which_can_be_saved == ["a"]
    assert config.global_batch_size_to_train_on == 1
    assert config.aoizora_request.slice == "v5e:4x4"
    assert build(cfg=False).guidance_scale == 1.0


def check_what_is_wrong_is_refused_with_the_nearest_key() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'guidance_scale'"):
        build(guidence_scale=3)
    with pytest.raises(InvalidRequest, match="attention: given by build_config"):
        build(attention="ulysses")
    with pytest.raises(InvalidRequest, match="MaxDiffusion refuses"):
        build(seed="seven")
    with pytest.raises(InvalidRequest, match="guidance_scale is 1"):
        build(guidance_scale=1.0)


def check_the_command_line_is_accepted_and_sets_what_apply_sets() -> None:
    """But for attention kinds before whose rules its pyconfig puts its own, as the export says."""
    from maxdiffusion import pyconfig

    for plan in PLANS:
        config = build()
        before = dict(config.get_keys())
        keys = dict(before)
        maxdiffusion.apply(plan, keys, 16)
        path = maxdiffusion.Template.find("wan2.1-1.3b", None)._path  # type: ignore[union-attr]
        arguments = shlex.split(maxdiffusion.command_line(plan))
        with contextlib.redirect_stdout(io.StringIO()):
            pyconfig.initialize(["", str(path), *arguments])
        pasted = dict(pyconfig.config.get_keys())
        for name in maxdiffusion.settings(plan):
            if name == "logical_axis_rules" and plan.data["attention"] != "gathered":
                assert pasted[name][-len(keys[name]) + 1 :][0][0] is not None
                continue
            assert pasted[name] == keys[name], name
        for name in ("global_batch_size_to_load", "global_batch_size_to_train_on", "total_train_batch_size"):
            assert pasted[name] == keys[name], name


def check_its_rules_divide_its_tensors_as_the_plan_divides_ours() -> None:
    """Its logical names through flax's resolution, beside our activation rules."""
    import flax.linen as nn

    for plan in PLANS:
        keys = dict(build().get_keys())
        maxdiffusion.apply(plan, keys, 16)
        sizes = plan.mesh_shape

        def axes(name: str, plan: Plan = plan, sizes: dict[str, int] = sizes) -> tuple[str, ...]:
            return tuple(a for a in plan.axis_rules.get(name, ()) if sizes[a] > 1)

        def resolved(names: tuple[str, ...], keys: dict[str, Any] = keys) -> list[tuple[str, ...]]:
            spec = nn.logical_to_mesh_axes(names, keys["logical_axis_rules"])
            return [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in spec]

        assert resolved(("embed", "heads")) == [axes("embed"), axes("heads")]
        assert resolved(("embed", "mlp")) == [axes("embed"), axes("mlp")]
        attention = ("activation_batch", "activation_self_attn_heads", "activation_self_attn_q_length")
        assert resolved(attention) == [axes("batch"), axes("heads"), axes("sequence")]
        kv = axes("sequence") if plan.data["attention"] != "gathered" else ()
        assert resolved(("activation_self_attn_kv_length",)) == [kv]


def check_its_mesh_gets_the_plans_device_order_inside_the_call_alone() -> None:
    import threading

    from maxdiffusion import max_utils

    original = max_utils.create_device_mesh
    for plan in PLANS:
        config = build()

        @aoizora.auto_shard(plan=Plan({**plan.data, "request": {**config.aoizora_request.planned()}}))
        def generate(config: Any) -> tuple[Any, Any]:
            aoizora.apply_strategy_to_config(config)
            loaded: list[Any] = []
            loader = threading.Thread(target=lambda: loaded.append(max_utils.create_device_mesh(config, logging=False)))
            loader.start()
            loader.join()
            return max_utils.create_device_mesh(config), loaded[0]

        with contextlib.redirect_stdout(io.StringIO()):
            here, there = generate(config)
        assert list(here.shape) == [plan.mesh_shape[axis] for axis in maxdiffusion.MESH_AXES]
        assert [d.id for d in here.flat] == plan.data["best"]["placement"]["device_ids"]
        assert (here == there).all()
        assert max_utils.create_device_mesh is original


def check_its_own_checks_of_the_config_run_after_apply() -> None:
    """Block sizes and precision as its pipelines read them."""
    from maxdiffusion import max_utils

    keys = build()
    maxdiffusion.apply(PLANS[0], keys.get_keys(), 16)
    blocks = max_utils.get_flash_block_sizes(keys)
    assert (blocks.block_q, blocks.block_kv) == (
        PLANS[0].data["kernel_blocks"]["queries"],
        PLANS[0].data["kernel_blocks"]["keys"],
    )


if __name__ == "__main__":
    checks.run(globals())
