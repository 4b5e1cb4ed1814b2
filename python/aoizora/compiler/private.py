"""The only place that touches what jax and jaxlib do not promise to keep.

test_compiler_private.py says what is expected of each name used here: it fails first when a version moves.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy
from jax._src import compiler, distributed
from jax._src.interpreters import mlir, pxla
from jaxlib import _jax
from jaxlib.mlir import ir, passmanager

PROPAGATION = "builtin.module(sdy-propagation-pipeline)"
# Without enable-full-version no collective is inserted.
EXPLICIT_RESHARDS = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"

# Longer dense constants are elided: their values cost nothing, their text would.
_LARGE_ELEMENTS = 16
_CONTEXT_PROGRAMS = 50
_contexts: list[tuple[Any, int]] = []
_RESOURCE = re.compile(r"dense_resource<\w+>")


# What the first lowering of a kernel in a process would import.
_LOWERING_MODULES = (
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.dialects.mhlo",
    "jax._src.pallas.mosaic.pallas_call_registration",
)


_PLACES = {"jax_include_full_tracebacks_in_locations": True, "jax_traceback_in_locations_limit": 0}


def preload() -> None:
    """Imports what lowering needs. Starts no backend and no thread."""
    for name in _LOWERING_MODULES:
        importlib.import_module(name)


def quiet_locations() -> None:
    """Keeps source positions out of programs.

    They hold file paths, and which call site a cached jaxpr remembers depends on what the process traced before: with
    them the text of a program is not a function of the program.
    """
    # A full traceback of no frames; without full tracebacks one frame would stay.
    for name, value in _PLACES.items():
        jax.config.update(name, value)


@contextlib.contextmanager
def without_places() -> Iterator[None]:
    """Programs lowered inside have no source positions; then all is as it was."""
    before = {name: getattr(jax.config, name) for name in _PLACES}
    quiet_locations()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def propagate(program: Any, reshard: bool = False) -> str:
    """Generic form of a lowered program, or of its text, after Shardy's propagation: a sharding on every value.

    With `reshard` it has Shardy's explicit reshards, too. Consumes the module of a lowered program.
    """
    if not isinstance(program, str):
        return _propagate(program.compiler_ir("stablehlo"), reshard)
    with _context():
        return _propagate(ir.Module.parse(program), reshard)


def _context() -> Any:
    """A context for one more program. Making one takes a tenth of a propagation's time; it keeps what it ever saw."""
    if not _contexts or _contexts[0][1] >= _CONTEXT_PROGRAMS:
        context = mlir.make_ir_context()
        context.enable_multithreading(False)
        _contexts[:] = [(context, 0)]
    context, programs = _contexts[0]
    _contexts[0] = (context, programs + 1)
    return context


def _propagate(module: Any, reshard: bool) -> str:
    with module.context:
        for pipeline in (PROPAGATION, EXPLICIT_RESHARDS) if reshard else (PROPAGATION,):
            manager = passmanager.PassManager.parse(pipeline)
            # A module is verified when it is read; verifying it again after each of thirty passes takes three quarters
            # of their time.
            manager.enable_verifier(False)
            manager.run(module.operation)
    text = str(module.operation.get_asm(print_generic_op_form=True, large_elements_limit=_LARGE_ELEMENTS))
    # Numbered names of constants left out: what was elided before has its own.
    return _RESOURCE.sub("dense_resource<__elided__>", text)


def compile_text(text: str, devices: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Compiles a lowered program's text as `lowered.compile(options)` does, for devices in the order of its mesh.

    Shardings of all arguments are in the text, those of results are the compiler's to choose.
    """
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        (main,) = (op for op in module.body.operations if getattr(op, "sym_name", None) and op.sym_name.value == "main")
        backend = devices[0].client
        compile_options = pxla.create_compile_options(
            module,
            False,
            [False] * len(main.type.inputs),
            [True] * len(main.type.results),
            backend,
            numpy.array(devices, dtype=object),
            dict(options),
        )
        compiler.backend_compile_and_load(backend, module, _jax.DeviceList(tuple(devices)), compile_options, [])


def forget_programs() -> None:
    """Drops everything jax remembers of programs traced before, so that memory stays bounded."""
    jax.clear_caches()


def process_store() -> Any:
    """JAX's store of keys and values that all its processes see; None where there is one process. A collective, which
    has a public name, would keep the devices waiting while process 0 plans."""
    return distributed.global_state.client
