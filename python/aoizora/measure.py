"""The best plans' proxies run on the devices that are here: measured beside predicted."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from aoizora import _core
from aoizora.calibrating.timing import Meeting
from aoizora.errors import InvalidRequest
from aoizora.models import wan
from aoizora.models.sharding import Sharding
from aoizora.models.step import build_step
from aoizora.plan_file import Plan
from aoizora.planning import Progress
from aoizora.serving import devices as here

# A transformer of the model's heads but little else: what a CPU runs in place of it.
_SMALL: dict[str, Any] = {"attention_head_dim": 12, "ffn_dim": 512, "text_dim": 32, "freq_dim": 16}
_SMALL_LATENT, _SMALL_TEXT = (3, 10, 6), 16


class Measured(NamedTuple):
    """One plan's proxy: `layers` blocks between entry and exit."""

    sharding: str
    order: str
    predicted_seconds: float
    seconds: list[float]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)


class Result(NamedTuple):
    plans: list[Measured]
    layers: int
    devices: str
    small: bool
    """The devices ran a small stand-in for the model."""
    slice: str | None = None
    """Predicted is what the planner says of the very programs that ran, with the numbers of this slice; where it is
    None, what the plan says of the model: with a stand-in the times do not compare then, only that all of it runs."""

    @property
    def correlation(self) -> float | None:
        """Spearman's, of predicted and measured; none for fewer than two plans or where one has no order."""
        return spearman([plan.predicted_seconds for plan in self.plans], [plan.median_seconds for plan in self.plans])

    def dumps(self) -> str:
        plans = [{**plan._asdict(), "median_seconds": plan.median_seconds} for plan in self.plans]
        head = {"devices": self.devices, "layers": self.layers, "small": self.small, "slice": self.slice}
        head["correlation"] = self.correlation
        return json.dumps({"format": "aoizora measurement", "version": 1, **head, "plans": plans}, indent=1) + "\n"


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Correlation of ranks, ties sharing their mean rank."""

    def ranks(values: Sequence[float]) -> np.ndarray:
        ordered = np.sort(values)
        low, high = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
        return np.asarray((low + high - 1) / 2)

    a, b = ranks(first), ranks(second)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def variant(plan: Plan, entry: dict[str, Any]) -> Plan:
    """The plan with one of its runners-up in the winner's place, as far as running it goes."""
    candidate = entry["candidate"]
    names = [axis["name"] for axis in candidate["mesh"]]
    sizes = [axis["size"] for axis in candidate["mesh"]]
    changes = {
        "best": entry,
        "mesh": {"axis_names": names, "axis_sizes": sizes},
        "axis_rules": [[axis, rule] for axis, rule in candidate["rules"].items()],
        "attention": candidate["attention"],
        "kernel_blocks": candidate["blocks"],
        "compiler_options": candidate["compiler_options"],
    }
    return Plan({**plan.data, **changes})


def measure(
    plan: Plan,
    top: int = 3,
    *,
    layers: int = 3,
    repeats: int = 10,
    warm_up: int = 2,
    slice: str | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Runs the proxies of the best `top` plans one after the other. Where the devices are no TPU, a small transformer
    of the same heads stands for the model. With several processes every one must call it alike, and a run takes as long
    as the slowest of them. slice: predict each program as it runs here with this slice's numbers (`aoizora calibrate`).
    """
    if min(top, layers, repeats) < 1 or warm_up < 0:
        raise InvalidRequest("top, layers and repeats must be 1 or more, warm_up 0 or more")
    entries = [plan.data["best"], *plan.data["runners_up"]][:top]
    present = list(jax.devices() if devices is None else devices)
    small = present[0].platform != "tpu"
    if slice is not None and len(_core.slice_devices(slice)) != len(present):
        raise InvalidRequest(f"{slice} has {len(_core.slice_devices(slice))} devices; here are {len(present)}")
    meeting = Meeting(present)
    started = time.monotonic()
    measured = []
    for number, entry in enumerate(entries):
        chosen = variant(plan, entry)
        mesh = here.mesh_of(chosen, present)
        with jax.set_mesh(mesh):
            build = _small_step if small else _full_step
            program = build(chosen, mesh, layers)
        seconds = meeting.slowest([meeting.timed(program.run) for _ in range(warm_up + repeats)])[warm_up:]
        if slice is None:
            predicted = _predicted(plan, entry, layers)
        else:
            predicted = _priced(chosen, program.text(), slice, layers, small)
        measured.append(Measured(entry["sharding"], entry["placement"]["order"], predicted, seconds))
        if progress is not None:
            elapsed = time.monotonic() - started
            left = elapsed / (number + 1) * (len(entries) - number - 1)
            progress("measure", number + 1, len(entries), elapsed, left, "")
    where = f"{len(present)} x {present[0].device_kind}"
    if jax.process_count() > 1:
        where += f" in {jax.process_count()} processes"
    return Result(measured, layers, where, small, slice)


def _predicted(plan: Plan, entry: dict[str, Any], layers: int) -> float:
    """Entry, `layers` blocks, exit: step - (depth - layers) block, both by the HLO passes, as all plans have them."""
    block: float = entry["passes_block_seconds"]
    step: float = entry["passes_step_seconds"]
    depth: int = plan.data["layers"]
    return step - (depth - layers) * block


def _priced(plan: Plan, text: str, slice_name: str, layers: int, small: bool) -> float:
    """Q2 of the program as it was compiled here. A stand-in is a program nobody knows the model of."""
    place = plan.data["best"]["placement"]
    where = [tuple(at) for at in place["coordinates"]]
    number = {(tuple(at), core): k for k, (at, core) in enumerate(_core.slice_devices(slice_name))}
    unknown = [at for at in zip(where, place["cores"], strict=True) if at not in number]
    if unknown:
        raise InvalidRequest(f"{slice_name} has no chip at {unknown[0][0]}, which the plan uses")
    devices = [number[at] for at in zip(where, place["cores"], strict=True)]
    workload = "" if small else _core.make_workload(json.dumps(plan.request))
    candidate = "" if small else json.dumps(plan.candidate)
    rung = "passes" if small else "code"
    score = json.loads(_core.score(text, workload, candidate, slice_name, devices, layers, rung))
    return float(score["step_seconds"])


class _Program(NamedTuple):
    compiled: Any
    arguments: Any

    def run(self) -> jax.Array:
        result: jax.Array = self.compiled(*self.arguments)
        return result

    def text(self) -> str:
        return str(self.compiled.as_text())


def _full_step(plan: Plan, mesh: jax.sharding.Mesh, layers: int) -> _Program:
    step, shapes = build_step(plan.request, plan.candidate, mesh, layers)
    return _prepared(step, shapes, {name: str(value) for name, value in plan.data["compiler_options"].items()})


def _small_step(plan: Plan, mesh: jax.sharding.Mesh, layers: int) -> _Program:
    request = plan.request
    sizes = json.loads(_core.wan_config(request["model"]))
    config = replace(wan.WanConfig(), num_attention_heads=sizes["num_attention_heads"], num_layers=layers, **_SMALL)
    sharding = Sharding(mesh, plan.candidate)
    batch = _core.latent_shape(json.dumps(request))[0]
    latents = (batch, config.in_channels, *_SMALL_LATENT)
    table = config.table(latents, _SMALL_TEXT, "f32")

    def step(params: wan.Params, latents: jax.Array, timestep: jax.Array, text: jax.Array) -> jax.Array:
        return wan.forward(params, latents, timestep, text, config=config, sharding=sharding, attention_impl="exact")

    by_batch = jax.sharding.NamedSharding(mesh, sharding.activation_spec(["batch"]))

    def batched(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=by_batch)

    shapes = (
        wan.parameter_shapes(table, sharding),
        batched(*latents),
        batched(batch),
        batched(batch, _SMALL_TEXT, config.text_dim),
    )
    return _prepared(step, shapes, {})


def _prepared(step: Any, shapes: Any, compiler_options: dict[str, str]) -> _Program:
    """The compiled step over arguments made where they belong."""

    def arguments() -> Any:  # no time depends on the values, as long as they are ordinary numbers
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.02, leaf.dtype), shapes)

    made = jax.jit(arguments, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, shapes))()
    compiled = jax.jit(step).lower(*made).compile(compiler_options=compiler_options or None)
    return _Program(compiled, made)
