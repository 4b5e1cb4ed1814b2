"""The only place that touches what jax and jaxlib do not promise to keep.

test_compiler_private.py says what is expected of each name used here: it fails first when a version moves.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src.interpreters import mlir
from jaxlib.mlir import ir, passmanager

PROPAGATION = "builtin.module(sdy-propagation-pipeline)"
# Without enable-full-version no collective is inserted.
EXPLICIT_RESHARDS = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"

# Longer dense constants are elided: their values cost nothing, their text would.
_LARGE_ELEMENTS = 16


def quiet_locations() -> None:
    """Keeps source positions out of programs.

    They hold file paths, and which call site a cached jaxpr remembers depends on what the process traced before: with
    them the text of a program is not a function of the program.
    """
    # A full traceback of no frames; without full tracebacks one frame would stay.
    jax.config.update("jax_include_full_tracebacks_in_locations", True)
    jax.config.update("jax_traceback_in_locations_limit", 0)


def propagate(lowered: Any, reshard: bool = False) -> str:
    """Generic form of a lowered program after Shardy's propagation, a sharding on every value.

    With `reshard` it has Shardy's explicit reshards, too. Consumes the module of `lowered`.
    """
    return _propagate(lowered.compiler_ir("stablehlo"), reshard)


def propagate_text(text: str, reshard: bool = False) -> str:
    """The same for a lowered program's text."""
    with mlir.make_ir_context():
        return _propagate(ir.Module.parse(text), reshard)


def _propagate(module: Any, reshard: bool) -> str:
    with module.context:
        for pipeline in (PROPAGATION, EXPLICIT_RESHARDS) if reshard else (PROPAGATION,):
            passmanager.PassManager.parse(pipeline).run(module.operation)
    return str(module.operation.get_asm(print_generic_op_form=True, large_elements_limit=_LARGE_ELEMENTS))


def forget_programs() -> None:
    """Drops everything jax remembers of programs traced before, so that memory stays bounded."""
    jax.clear_caches()
