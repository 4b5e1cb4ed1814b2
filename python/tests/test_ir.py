"""The reader of programs against readers not written here: XLA's own for HLO, MLIR's for StableHLO."""

import collections
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from aoizora import ParseError, _core

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "hlo"
HLO = sorted(path.name for path in DATA.glob("*.hlo*.txt.gz"))
MLIR = sorted(path.name for path in DATA.glob("*.mlir.gz"))

# XLA's enumeration says some opcodes shorter than HLO text does.
SPELLED = {
    "exp": "exponential",
    "sin": "sine",
    "cos": "cosine",
    "log1p": "log-plus-one",
    "expm1": "exponential-minus-one",
}


def text_of(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode()


def xla_counts(text: str) -> dict[str, int]:
    """Instructions by opcode as XLA's own reader finds them."""
    hlo: Any = pytest.importorskip("jaxlib._hlo")
    counts: collections.Counter[str] = collections.Counter()
    for computation in hlo.hlo_module_from_text(text).computations():
        for instruction in computation.instructions():
            dashed = re.sub(r"(?<!^)([A-Z])", r"-\1", instruction.opcode.name[1:]).lower()
            counts[SPELLED.get(dashed, dashed)] += 1
    return dict(counts)


@pytest.mark.parametrize("name", HLO)
def test_opcodes_equal_those_of_xlas_own_reader(name: str) -> None:
    text = text_of(name)
    assert json.loads(_core.inspect(text))["opcodes"] == xla_counts(text)


def mlir_counts(operation: Any) -> dict[str, int]:
    """Operations by name as MLIR walks them; block arguments are "parameter"."""
    counts: collections.Counter[str] = collections.Counter()

    def visit(op: Any) -> None:
        counts[op.name] += 1
        for region in op.regions:
            for block in region.blocks:
                counts["parameter"] += len(block.arguments)
                for inner in block.operations:
                    visit(inner.operation)

    visit(operation)
    return dict(counts)


@pytest.mark.parametrize("name", MLIR)
def test_operations_equal_those_of_mlirs_own_reader(name: str) -> None:
    """Before and after propagation, in the generic and in the custom form."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir, passmanager

    with mlir.make_ir_context():
        module = ir.Module.parse(text_of(name))
        for passes in (
            "",
            "sdy-propagation-pipeline",
            "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives)",
        ):
            passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)
            expected = mlir_counts(module.operation)
            generic = json.loads(_core.inspect(module.operation.get_asm(print_generic_op_form=True)))
            assert generic["opcodes"] == expected
            # The custom form leaves out reducers ("applies stablehlo.add").
            custom = json.loads(_core.inspect(module.operation.get_asm()))
            for opcode, count in expected.items():
                hidden = opcode in ("parameter", "stablehlo.return", "stablehlo.add", "stablehlo.maximum")
                assert custom["opcodes"].get(opcode, 0) <= count if hidden else custom["opcodes"][opcode] == count
            assert custom["loops"]
            assert all(loop["trips"] for loop in custom["loops"])
            assert [loop["trips"] for loop in custom["loops"]] == [loop["trips"] for loop in generic["loops"]]
            assert custom["totals"] == generic["totals"]


def test_a_cut_text_is_refused_with_its_place() -> None:
    text = text_of("flash_d2c4.hlo.txt.gz")
    with pytest.raises(ParseError, match=r"line \d+, column \d+"):
        _core.inspect(text[: len(text) // 2])
