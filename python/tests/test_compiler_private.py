"""What aoizora.compiler.private expects of jax and jaxlib beyond their promises: the first to fail on a new version."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from aoizora.compiler import dump, private

PACKAGE = Path(private.__file__).resolve().parents[1]


def lowered(function: Any, *arguments: Any) -> Any:
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))


@pytest.fixture(scope="module")
def mesh() -> AbstractMesh:
    return AbstractMesh((2, 4), ("data", "tensor"))


def row_parallel(mesh: AbstractMesh) -> Any:
    """x sharded over batch and features, w over its rows: the product is a partial sum over "tensor"."""

    def shaped(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*axes)))

    return lowered(lambda x, w: jnp.tanh(x @ w), shaped((64, 128), "data", "tensor"), shaped((128, 32), "tensor", None))


def test_shardy_pipelines_are_registered_in_jaxlib() -> None:
    from jax._src.interpreters import mlir
    from jaxlib.mlir import passmanager

    with mlir.make_ir_context():
        for pipeline in (private.PROPAGATION, private.EXPLICIT_RESHARDS):
            passmanager.PassManager.parse(pipeline)
        with pytest.raises(ValueError, match="no-such-pass"):
            passmanager.PassManager.parse("builtin.module(no-such-pass)")


def test_jax_lowers_to_shardy_for_tpu_without_a_backend(mesh: AbstractMesh) -> None:
    text = row_parallel(mesh).as_text()
    assert 'sdy.mesh @mesh = <["data"=2, "tensor"=4]>' in text
    assert "sdy.sharding" in text


def test_propagation_gives_every_operation_a_sharding(mesh: AbstractMesh) -> None:
    text = private.propagate(row_parallel(mesh))
    for operation in ("stablehlo.dot_general", "stablehlo.tanh"):
        (line,) = (line for line in text.splitlines() if f'"{operation}"' in line)
        assert '<@mesh, [{"data"}, {}]>' in line
    assert "all_reduce" not in text


def test_explicit_reshards_name_the_partial_sum_and_its_axes(mesh: AbstractMesh) -> None:
    text = private.propagate(row_parallel(mesh), reshard=True)
    assert re.search(r'"sdy\.all_reduce".*\{"tensor"\}', text)


def test_the_text_is_generic_and_short(mesh: AbstractMesh) -> None:
    constant = jnp.asarray(range(4096), jnp.float32).reshape(64, 64)
    text = private.propagate(lowered(lambda x: x @ constant, jax.ShapeDtypeStruct((64, 64), jnp.float32)))
    assert text.startswith('"builtin.module"')
    # An operation without quotes would be in a pretty form of its own.
    assert not re.search(r"^\s+(%\d+ = )?(stablehlo|func|sdy)\.", text, re.MULTILINE)
    assert "__elided__" in text
    assert len(text) < 4000


def test_quiet_locations_leave_names_and_no_file() -> None:
    program = """
import jax, jax.numpy as jnp
from aoizora.compiler import private
if QUIET: private.quiet_locations()
f = lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, None, length=3)[0]
l = jax.jit(f).trace(jax.ShapeDtypeStruct((8, 8), jnp.float32)).lower(lowering_platforms=("tpu",))
print(l.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True))
"""
    texts = []
    for quiet in ("True", "False"):
        command = f"import sys; sys.path[:] = {sys.path!r}\n" + program.replace("QUIET", quiet)
        texts.append(subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout)
    assert all("while/body" in text for text in texts)
    assert "<string>" in texts[1], "a location names its file unless it is quiet"
    assert "<string>" not in texts[0]


COMPILED_TWICE = """
import sys, json
sys.path[:] = json.loads(sys.argv[2])
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from aoizora.compiler import private
private.quiet_locations()
devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
devices = [devices[i] for i in (2, 0, 3, 1)]
mesh = Mesh(np.array(devices).reshape(2, 2), ("data", "tensor"))
shaped = lambda shape, *axes: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*axes)))
arguments = shaped((64, 256), "data", "tensor"), shaped((256, 512), "tensor", None), shaped((7,))
traced = jax.jit(lambda x, w, unused: (jnp.tanh(x @ w), x)).trace(*arguments)
lowered = traced.lower(lowering_platforms=("tpu",))
text = lowered.as_text(debug_info=True)
options = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
lowered.compile(compiler_options={**options, "xla_dump_to": sys.argv[1] + "/lowered"})
private.compile_text(text, devices, {**options, "xla_dump_to": sys.argv[1] + "/text"})
"""


def test_compiling_a_text_is_compiling_what_it_was_lowered_from(tmp_path: Path) -> None:
    """The same HLO after the passes and after code generation: devices in their order, options, results and all."""
    pytest.importorskip("libtpu")
    command = [sys.executable, "-c", COMPILED_TWICE, str(tmp_path), json.dumps(sys.path)]
    environment = {**os.environ, "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for suffix in (dump.PASSES_TEXT, dump.CODE_TEXT):
        one, other = (dump.read(tmp_path / name, suffix) for name in ("lowered", "text"))
        assert one is not None
        assert one == other
        assert "all-reduce" in one.text


def test_a_process_that_preloaded_has_one_thread_and_lowers_without_importing() -> None:
    """It forks, and each fork would import again."""
    program = """
import os, sys, json
sys.path[:] = json.loads(sys.argv[1])
from aoizora.compiler import worker
from aoizora.models import build_step
worker.preload()
assert len(os.listdir("/proc/self/task")) == 1, "a thread was started"
import jax
known = set(sys.modules)
axes = {"data": 2, "fsdp": 1, "context": 2, "tensor": 1}
candidate = {"mesh": [{"name": n, "size": s} for n, s in axes.items()], "rules": {"sequence": ["context"]}}
mesh = jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes))
step, arguments = build_step({"model": "wan2.1-1.3b"}, candidate, mesh, 3, "tpu")
jax.jit(step).trace(*arguments).lower(lowering_platforms=("tpu",))
print(sorted(set(sys.modules) - known))
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, json.dumps(sys.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "[]"


def test_forgetting_programs_empties_the_caches(mesh: AbstractMesh) -> None:
    traced = 0

    @jax.jit
    def function(x: Any) -> Any:
        nonlocal traced
        traced += 1
        return x

    x = jax.ShapeDtypeStruct((2,), jnp.float32)
    function.trace(x)
    function.trace(x)
    assert traced == 1
    private.forget_programs()
    function.trace(x)
    assert traced == 2


def test_no_other_file_touches_private_modules() -> None:
    private_modules = re.compile(r"^\s*(from|import)\s+(jax\._src|jaxlib|jax\.interpreters|jax\.lib)\b", re.MULTILINE)
    users = {path.name for path in PACKAGE.rglob("*.py") if private_modules.search(path.read_text(encoding="utf-8"))}
    assert users == {"private.py"}
