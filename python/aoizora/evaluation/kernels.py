"""Bundles of the attention kernel by the compiler's own instruction schedule.

The compiler prints no cycles for a kernel, but the schedule of its instructions: one bundle issues a cycle. A kernel's
text is one grid step, with what only a row's first and last step run, so the count is the most a step takes.

    python -m aoizora.evaluation.kernels QUERIES KEYS REAL_KEYS QUERY_BLOCK KEY_BLOCK FOLDER    (used by bundles())
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from aoizora.errors import CompilerFailed

_TOTAL = re.compile(r"total scheduled bundles:\s+(\d+)")
_SECONDS = 300


@dataclass(frozen=True)
class Shape:
    """Lengths as the kernel gets them, padded to its blocks; keys that are real; blocks."""

    queries: int
    keys: int
    real_keys: int
    query_block: int = 512
    key_block: int = 512


SHAPES = {
    "self-attention, keys whole blocks": Shape(4608, 9216, 9216),
    "self-attention, keys padded": Shape(4608, 9216, 9000),
    "cross-attention, 512 keys": Shape(4608, 512, 512),
    "short queries, one block of 384": Shape(384, 1536, 1536, 384, 512),
}


def bundles(shape: Shape) -> int:
    """Scheduled bundles of the kernel for v5e. Raises CompilerFailed where the compiler printed no schedule."""
    with TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TPU_SKIP_MDS_QUERY": "1",
            "JAX_PLATFORMS": "cpu",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true",
        }
        numbers = (shape.queries, shape.keys, shape.real_keys, shape.query_block, shape.key_block)
        command = [sys.executable, "-m", "aoizora.evaluation.kernels", *map(str, numbers), folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode != 0:
            raise CompilerFailed(f"the attention kernel was not compiled: {done.stderr.strip()[-300:]}")
        return read_bundles(Path(folder))


def read_bundles(folder: Path) -> int:
    """Of the kernel in a folder of the compiler's dumps."""
    for path in sorted(folder.glob("*splash*schedule-analysis_final_bundles.txt")):
        found = _TOTAL.search(path.read_text(encoding="utf-8", errors="replace"))
        if found:
            return int(found[1])
    raise CompilerFailed("the compiler printed no instruction schedule of the attention kernel")


def _compile(shape: Shape) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies

    from aoizora.models.attention import _splash

    chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    where = jax.sharding.SingleDeviceSharding(chip)

    def heads(length: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, 20, length, 128), jnp.bfloat16, sharding=where)

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return _splash(q, k, v, shape.real_keys, shape.query_block, shape.key_block, False)

    jax.jit(kernel).lower(heads(shape.queries), heads(shape.keys), heads(shape.keys)).compile()


if __name__ == "__main__":
    _compile(Shape(*map(int, sys.argv[1:6])))
