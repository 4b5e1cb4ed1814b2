"""A plain JAX transformer that AoiZora plans: its training step on a TPU slice, run here on CPU devices.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu python transformer.py --slice v5e:2x4

plans the step (no TPU is needed), prints the plan, then runs steps under it and, on one device, without it: the losses
agree. On a TPU slice leave the environment as it is; the arrays then land on the plan's chips.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aoizora
from aoizora.report.progress import ProgressLine

Tree = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    batch: int = 16
    length: int = 128
    embed: int = 256
    heads: int = 8
    head_dim: int = 32
    mlp: int = 1024
    vocabulary: int = 512
    layers: int = 4


# The names of each array's dimensions; "layers" is scanned over.
PARAMETER_AXES: Tree = {
    "embedding": ("vocabulary", "embed"),
    "blocks": {
        "norm_1": ("layers", "embed"),
        "query": ("layers", "embed", "heads", "head_dim"),
        "key": ("layers", "embed", "heads", "head_dim"),
        "value": ("layers", "embed", "heads", "head_dim"),
        "out": ("layers", "heads", "head_dim", "embed"),
        "norm_2": ("layers", "embed"),
        "up": ("layers", "embed", "mlp"),
        "down": ("layers", "mlp", "embed"),
    },
    "norm": ("embed",),
}
STATE_AXES: Tree = {"params": PARAMETER_AXES, "mean": PARAMETER_AXES, "square": PARAMETER_AXES, "count": None}
TOKEN_AXES = ("batch", "sequence")
KINDS = {"head_dim": "whole"}
LIKE = {"vocabulary": "mlp"}  # one axis less to search: the embedding is divided as the MLP is


def shapes(sizes: Sizes) -> Tree:
    s = sizes
    attention = (s.layers, s.embed, s.heads, s.head_dim)
    return {
        "embedding": (s.vocabulary, s.embed),
        "blocks": {
            "norm_1": (s.layers, s.embed),
            "query": attention,
            "key": attention,
            "value": attention,
            "out": (s.layers, s.heads, s.head_dim, s.embed),
            "norm_2": (s.layers, s.embed),
            "up": (s.layers, s.embed, s.mlp),
            "down": (s.layers, s.mlp, s.embed),
        },
        "norm": (s.embed,),
    }


def initial_state(sizes: Sizes, seed: int = 0) -> Tree:
    """Parameters and Adam's moments, float32."""
    random = np.random.default_rng(seed)

    def parameter(path: Any, shape: tuple[int, ...]) -> np.ndarray:
        if "norm" in path[-1].key:
            return np.ones(shape, np.float32)
        return (random.standard_normal(shape) * 0.02).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(parameter, shapes(sizes), is_leaf=lambda x: isinstance(x, tuple))
    zeros = jax.tree.map(np.zeros_like, params)
    return {"params": params, "mean": zeros, "square": zeros, "count": np.zeros((), np.int32)}


def state_shapes(sizes: Sizes) -> Tree:
    """The same without the values."""
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, initial_state(sizes)))


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def block(x: jax.Array, w: Tree) -> jax.Array:
    h = norm(x, w["norm_1"])
    query, key, value = (jnp.einsum("bsd,dhk->bshk", h, w[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhk,bshk->bhqs", query, key) / query.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    x = x + jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqs,bshk->bqhk", weights, value), w["out"])
    return x + jax.nn.gelu(norm(x, w["norm_2"]) @ w["up"]) @ w["down"]


def forward(params: Tree, tokens: jax.Array) -> jax.Array:
    """Logits of the next token."""
    x = params["embedding"][tokens]
    x, _ = jax.lax.scan(lambda x, w: (block(x, w), None), x, params["blocks"])
    return norm(x, params["norm"]) @ params["embedding"].T


def loss_of(params: Tree, tokens: jax.Array) -> jax.Array:
    logits = jax.nn.log_softmax(forward(params, tokens)[:, :-1])
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], -1))


def train_step(state: Tree, tokens: jax.Array) -> tuple[Tree, jax.Array]:
    """One step of Adam."""
    loss, gradient = jax.value_and_grad(loss_of)(state["params"], tokens)
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["square"], gradient)

    def move(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return p - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)

    params = jax.tree.map(move, state["params"], mean, square)
    return {"params": params, "mean": mean, "square": square, "count": count}, loss


def plan_training(sizes: Sizes, slice_name: str, **options: Any) -> aoizora.Plan:
    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32)
    return aoizora.plan_program(
        jax.jit(train_step, donate_argnums=0),
        (state_shapes(sizes), tokens),
        slice_name,
        axes=(STATE_AXES, TOKEN_AXES),
        kinds=KINDS,
        like=LIKE,
        **options,
    )


def run(sizes: Sizes, steps: int, plan: aoizora.Plan | None, mesh: Any = None) -> list[float]:
    """Losses of some steps, under a plan or on one device."""
    state = initial_state(sizes)
    random = np.random.default_rng(1)
    # What the plan's program must be compiled with; other compilers do not know these options.
    flags = plan.data["compiler_options"] if plan is not None and jax.default_backend() == "tpu" else None
    step, losses = jax.jit(train_step, donate_argnums=0, compiler_options=flags), []
    for _ in range(steps):
        tokens = random.integers(0, sizes.vocabulary, (sizes.batch, sizes.length)).astype(np.int32)
        arguments: tuple[Any, Any] = (state, tokens)
        if plan is not None:
            arguments = jax.device_put(arguments, plan.shardings(arguments, mesh))
        state, loss = step(*arguments)
        losses.append(float(loss))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", default="v5e:2x4")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", default="plan.json")
    options = parser.parse_args()
    sizes = Sizes()
    progress = ProgressLine()
    # A small program's hundreds of shardings take minutes on two cores; the compiler gets the best twelve.
    plan = plan_training(sizes, options.slice, settings={"survivor_fraction": 0.02}, progress=progress)
    progress.close()
    plan.save(options.out)
    print("sharding:", plan.data["best"]["sharding"], "; placed", plan.data["best"]["placement"]["order"])
    shape = tuple(plan.mesh_shape.values())
    on_tpu = jax.default_backend() == "tpu"
    mesh = plan.mesh() if on_tpu else jax.make_mesh(shape, tuple(plan.mesh_shape), (jax.sharding.AxisType.Auto,) * 4)
    sharded, whole = run(sizes, options.steps, plan, mesh), run(sizes, options.steps, None)
    print("losses:", sharded)
    np.testing.assert_allclose(sharded, whole, rtol=1e-4)
    print("the same on one device")


if __name__ == "__main__":
    main()
