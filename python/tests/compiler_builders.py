"""Programs for the tests of aoizora.compiler, built like aoizora.models.build_step and small."""

import os
import signal
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def block(request: dict[str, Any], candidate: dict[str, Any], mesh: Mesh, layers: int, attention: str) -> Any:
    """A plain DiT block in a loop: modulated self-attention, cross-attention, MLP; `request` may change the sizes."""
    misbehave(candidate)
    sizes = {"hidden": 256, "heads": 4, "tokens": 1024, "text": 128, "batch": 2, **request}
    hidden, heads = sizes["hidden"], sizes["heads"]
    mlp_hidden = request.get("mlp", 4 * hidden)

    def sharding(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, P(*(tuple(candidate["rules"].get(axis, ())) if axis else None for axis in axes)))

    def constrain(x: Any, *axes: str | None) -> Any:
        return jax.lax.with_sharding_constraint(x, sharding(*axes))

    def attend(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.reshape(*x.shape[:2], heads, hidden // heads) for x in (q, k, v))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)).astype(q.dtype)
        return constrain(jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(*q.shape[:2], hidden), *TOKENS, "heads")

    def norm(x: Any) -> Any:
        y = x.astype(jnp.float32)
        y = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-6)
        return y.astype(x.dtype)

    def body(x: Any, w: dict[str, Any], text: Any, time_embedding: Any) -> Any:
        m = (time_embedding[:, None, :] + w["modulation"][None]).astype(x.dtype)
        h = norm(x) * (1 + m[:, 0:1]) + m[:, 1:2]
        x = constrain(x + (attend(h @ w["q"], h @ w["k"], h @ w["v"]) @ w["o"]) * m[:, 2:3], *TOKENS, None)
        x = constrain(x + attend(norm(x) @ w["cq"], text @ w["ck"], text @ w["cv"]) @ w["co"], *TOKENS, None)
        h = norm(x) * (1 + m[:, 3:4]) + m[:, 4:5]
        h = constrain(jax.nn.gelu(h @ w["up"]), *TOKENS, "mlp")
        return constrain(x + (h @ w["down"]) * m[:, 5:6], *TOKENS, None)

    def step(weights: dict[str, Any], x: Any, text: Any, time_embedding: Any) -> Any:
        return jax.lax.scan(lambda carry, w: (body(carry, w, text, time_embedding), None), x, weights)[0]

    def shaped(shape: tuple[int, ...], *axes: str | None, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(*axes))

    weights = {
        name: shaped((layers, hidden, hidden), None, "embed", "heads") for name in ("q", "k", "v", "cq", "ck", "cv")
    }
    weights |= {name: shaped((layers, hidden, hidden), None, "heads", "embed") for name in ("o", "co")}
    weights["up"] = shaped((layers, hidden, mlp_hidden), None, "embed", "mlp")
    weights["down"] = shaped((layers, mlp_hidden, hidden), None, "mlp", "embed")
    weights["modulation"] = shaped((layers, 6, hidden), None, None, None, dtype=jnp.float32)
    batch = sizes["batch"]
    return step, (
        weights,
        shaped((batch, sizes["tokens"], hidden), *TOKENS, None),
        shaped((batch, sizes["text"], hidden), "batch", None, None),
        shaped((batch, hidden), "batch", None, dtype=jnp.float32),
    )


TOKENS = ("batch", "sequence")


def misbehave(candidate: dict[str, Any]) -> None:
    """What a candidate's "misbehave" asks for, as the compiler does it now and then."""
    match candidate.get("misbehave"):
        case None:
            pass
        case "raise":
            raise ValueError("heads 40 do not divide by 3")
        case "abort":
            print("Check failed: limited ICI routing", file=sys.stderr, flush=True)
            os.abort()
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(600)
        case "sleep in child":
            if os.fork() == 0:
                time.sleep(600)
            time.sleep(600)
        case "allocate":
            held = bytearray(1 << 30)
            held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
            time.sleep(600)
            del held
        case other:
            raise AssertionError(other)


def collective(request: dict[str, Any], candidate: dict[str, Any], mesh: Mesh, layers: int, attention: str) -> Any:
    """One collective of the candidate's "kind" over the mesh axes "over", between two matmuls."""
    over = tuple(candidate["over"])
    group = 1
    for axis in over:
        group *= mesh.shape[axis]

    def local(x: Any, w: Any) -> Any:
        y = x @ w
        match candidate["kind"]:
            case "psum":
                z = jax.lax.psum(y, over)
            case "all_gather":
                z = jax.lax.all_gather(y, over, tiled=True)
            case "psum_scatter":
                z = jax.lax.psum_scatter(y, over, tiled=True)
            case "all_to_all":
                z = jax.lax.all_to_all(y, over, 0, 1, tiled=True)
            case "ppermute":
                z = jax.lax.ppermute(y, over, [(rank, (rank + 1) % group) for rank in range(group)])
            case other:
                raise AssertionError(other)
        return jnp.tanh(z) @ jnp.ones((z.shape[1], 256), z.dtype)

    everything = P(mesh.axis_names)
    function = jax.shard_map(local, mesh=mesh, in_specs=(everything, P()), out_specs=everything, check_vma=False)
    rows = candidate.get("rows", 512)  # a device
    x = jax.ShapeDtypeStruct((mesh.size * rows, 256), jnp.bfloat16, sharding=NamedSharding(mesh, everything))
    return function, (x, jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P())))
