"""Cycles of the attention kernel by the compiler's own instruction schedule.

The compiler prints no cycles for a kernel, but the schedule of its instructions: one bundle issues a cycle. The text is
a loop over grid steps; what a branch leaves out unless the block of keys is a row's first or last is counted apart.

    python -m aoizora.evaluation.kernels QUERIES KEYS REAL_KEYS QUERY_BLOCK KEY_BLOCK    (used by cycles())
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

_SECONDS = 300
_ADDRESS = re.compile(r"^\s*0x([0-9a-f]+)\s", re.MULTILINE)
_BRANCH = re.compile(r"sbr\.rel \(!?%(p\d+)\S*\) target = \$region(\d+)")
_REGION = re.compile(r"(?:Start/End empty|Start) region (\d+)")
_DELAY_SLOTS = 4  # bundles after a branch that are issued whether it is taken or not


@dataclass(frozen=True)
class Shape:
    """Lengths as the kernel gets them, padded to its blocks; keys that are real; blocks."""

    queries: int
    keys: int
    real_keys: int
    query_block: int = 512
    key_block: int = 512


SHAPES = {
    "512 x 512": Shape(4608, 9216, 9216),
    "512 x 512, keys padded": Shape(4608, 9216, 9000),
    "512 x 512, 512 keys in all": Shape(4608, 512, 512),
    "384 x 512": Shape(384, 1536, 1536, 384, 512),
    "512 x 1024": Shape(4608, 9216, 9216, 512, 1024),
    "512 x 1024, keys padded": Shape(4608, 9216, 9000, 512, 1024),
}


@dataclass(frozen=True)
class Cycles:
    """Bundles one grid step issues, and those that only the first and the last step of a row issue on top."""

    step: int
    row: int


def cycles(shape: Shape) -> Cycles:
    """Of the kernel for v5e. Raises CompilerFailed where the compiler printed no schedule."""
    with TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TPU_SKIP_MDS_QUERY": "1",
            "JAX_PLATFORMS": "cpu",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true",
        }
        numbers = (shape.queries, shape.keys, shape.real_keys, shape.query_block, shape.key_block)
        command = [sys.executable, "-m", "aoizora.evaluation.kernels", *map(str, numbers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode != 0:
            raise CompilerFailed(f"the attention kernel was not compiled: {done.stderr.strip()[-300:]}")
        return read_cycles(Path(folder))


def read_cycles(folder: Path) -> Cycles:
    """Of the kernel in a folder of the compiler's dumps."""
    for path in sorted(folder.glob("*splash*final_bundles.txt")):
        if "schedule-analysis" not in path.name:
            return count_bundles(path.read_text(encoding="utf-8", errors="replace"))
    raise CompilerFailed("the compiler printed no instruction schedule of the attention kernel")


def count_bundles(text: str) -> Cycles:
    """Of the loop over grid steps in a final schedule.

    The loop is what the last backward branch repeats. A forward branch on "the index differs from N" skips what only
    one step of a row runs; one on "at most 0" skips a block that the mask leaves empty, of which we have none.
    """
    starts = [match.start() for match in _ADDRESS.finditer(text)]
    bundles = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
    places = {int(name): k for k, bundle in reversed(list(enumerate(bundles))) for name in _REGION.findall(bundle)}
    defined: dict[str, str] = {}
    loop, once = None, 0
    for k, bundle in enumerate(bundles):
        for name, compare in re.findall(r"%(p\d+)\S* = scmp\.(\w+)", bundle):
            defined[name] = compare
        for predicate, region in _BRANCH.findall(bundle):
            target = places.get(int(region), 0)
            if target <= k:
                loop = k + 1 + _DELAY_SLOTS - target
            elif defined.get(predicate) == "ne":
                once += target - k - 1 - _DELAY_SLOTS
    if loop is None:
        back = [k for k, bundle in enumerate(bundles) if _BRANCH.search(bundle)]
        raise CompilerFailed(f"the schedule of the attention kernel has no loop, only branches at {back}")
    return Cycles(loop - once, once)


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
