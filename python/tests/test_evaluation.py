"""The evaluation's statistics against scipy and by their laws, lent cycles against the compiler's own, the document."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoizora import _core, cli
from aoizora.errors import InvalidRequest
from aoizora.evaluation import cycles, fidelity, kernels, reproduce, sweep, tables
from aoizora.evaluation.fidelity import Placed, Pool, Row
from aoizora.evaluation.sections import context

scipy_stats = pytest.importorskip("scipy.stats")
pytest.importorskip("matplotlib")

WORKLOAD = sweep.Workload("v5e:2x4", 480, 81)


def read(data: Path, name: str) -> str:
    return gzip.decompress((data / "hlo" / name).read_bytes()).decode()


def row(rank: int, times: list[tuple[float, float]], attention: str = "gathered") -> Row:
    """A sharding whose placements have these (Q2, simulated) seconds."""
    placed = tuple(Placed(f"p{k}", (k,), q2 / 40, q2, judged) for k, (q2, judged) in enumerate(times))
    candidate = {"attention": attention, "mesh": [], "rules": {}}
    outcome = "ok" if times else "over_budget"
    return Row(candidate, f"s{rank:03}", float(rank), rank, outcome, placed=placed)


def pool(rows: list[Row], shardings: int | None = None) -> Pool:
    return Pool(WORKLOAD, tuple(rows), shardings or len(rows), "all", simulated=True)


# --- statistics


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=30))
def test_spearman_is_scipys(pairs: list[tuple[int, int]]) -> None:
    a, b = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    ours = fidelity.spearman(a, b)
    if len(set(b)) == 1:
        assert ours is None  # nothing to order
    elif len(set(a)) == 1:
        assert ours == 0  # a prediction that orders nothing
    else:
        assert ours == pytest.approx(scipy_stats.spearmanr(a, b).statistic, abs=1e-12)


def test_the_last_bits_of_a_sum_order_nothing() -> None:
    reference = [1.0, 1.0, 2.0]
    assert fidelity.spearman([0.1 + 0.2, 0.3, 0.4], reference) == fidelity.spearman([0.3, 0.3, 0.4], reference) == 1


def test_groups_average_workloads_and_do_not_pool_them() -> None:
    # Perfect inside each workload, but the scales differ so that a pooled order would be worse.
    slow = fidelity.fidelity(pool([row(k, [(10.0 + k, 1.0 + k)]) for k in range(5)]))
    fast = fidelity.fidelity(pool([row(k, [(1.0 + k, 100.0 + k)]) for k in range(5)]))
    assert slow is not None
    assert fast is not None
    assert fidelity.mean([slow.q2, fast.q2]) == 1
    pooled = [10.0 + k for k in range(5)] + [1.0 + k for k in range(5)]
    assert fidelity.spearman(pooled, [1.0 + k for k in range(5)] + [100.0 + k for k in range(5)]) < 0.5


def test_a_perfect_planner_has_no_regret_and_keeps_the_best() -> None:
    rows = [row(k, [(1.0 + k, 1.0 + k), (1.5 + k, 1.5 + k)]) for k in range(30)]
    found = fidelity.fidelity(pool(rows))
    assert found is not None
    assert (found.q1, found.q2, found.regret, found.best_rank, found.top_1_kept) == (1, 1, 0, 0, True)
    assert set(found.alone) == {1.0}


def test_pruning_keeps_fifteen_percent_but_at_least_twelve() -> None:
    assert pool([row(k, [(1.0, 1.0)]) for k in range(200)], shardings=100).kept == 15
    assert pool([row(k, [(1.0, 1.0)]) for k in range(200)], shardings=101).kept == 16
    assert pool([row(k, [(1.0, 1.0)]) for k in range(20)]).kept == 12
    assert pool([row(k, [(1.0, 1.0)]) for k in range(5)]).kept == 5


def test_a_best_sharding_that_pruning_loses_costs_regret() -> None:
    rows = [row(k, [(2.0 + k / 100, 2.0 + k / 100)]) for k in range(20)] + [row(20, [(1.0, 1.0)])]
    found = fidelity.fidelity(pool(rows))
    assert found is not None
    assert not found.top_1_kept
    assert found.best_rank == 20
    assert found.regret == pytest.approx(1.0)


def test_survivors_that_do_not_fit_are_replaced_by_the_next_batch() -> None:
    rows = [row(k, []) for k in range(12)] + [row(12 + k, [(5.0 - k, 1.0)]) for k in range(3)]
    plan = fidelity.plan_of(pool(rows))
    assert plan is not None
    assert plan.row.rank == 14
    assert fidelity.plan_of(pool([row(k, []) for k in range(12)])) is None


def test_what_cannot_be_hidden_survives_whatever_its_q1() -> None:
    rows = [row(k, [(2.0, 2.0)]) for k in range(20)] + [row(20, [(1.0, 1.0)])]
    rows = [replace(r, unhidden_seconds=100.0 - r.rank) for r in rows]
    plan = fidelity.plan_of(pool(rows))
    assert plan is not None
    assert plan.row.rank == 20
    rows = [replace(r, unhidden_seconds=1.0 + r.rank) for r in rows]
    plan = fidelity.plan_of(pool(rows))
    assert plan is not None
    assert plan.row.rank == 0


def test_only_placements_that_spread_are_ordered_alone() -> None:
    assert fidelity.placements_alone(row(0, [(1.0, 1.0), (2.0, 1.009)])) is None
    assert fidelity.placements_alone(row(0, [(1.0, 1.0), (2.0, 1.02)])) == 1
    assert fidelity.placements_alone(row(0, [(2.0, 1.0), (1.0, 1.02)])) == -1
    assert fidelity.placements_alone(row(0, [(1.0, 1.0), (1.0, 1.02)])) == 0


def test_a_pool_of_one_attention_kind_ranks_anew() -> None:
    kinds = itertools.cycle(("gathered", "ulysses"))
    whole = pool([row(k, [(1.0, 1.0)], kind) for k, kind in zip(range(10), kinds, strict=False)])
    assert [r.rank for r in whole.only("gathered").rows] == [0, 1, 2, 3, 4]
    assert {r.candidate["attention"] for r in whole.only("ulysses").rows} == {"ulysses"}


def test_the_sample_for_slow_judges_is_seeded_and_spreads() -> None:
    rows = [row(k, [(1.0, 1.0), (1.0, 1.0 + k / 100)]) for k in range(60)]
    one = fidelity.spreading_sample([pool(rows)])
    shuffled = list(rows)
    random.Random(1).shuffle(shuffled)
    two = fidelity.spreading_sample([pool(shuffled)])
    assert [r.signature for _, r in one] == [r.signature for _, r in two]
    assert len(one) == 20
    assert all(r.spread > 0.01 for _, r in one)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.floats(0.5, 2))
def test_a_common_factor_explains_a_common_error(reference: list[float], factor: float) -> None:
    ours = [value * factor for value in reference]
    assert fidelity.error_factor(ours, reference) == pytest.approx(max(factor, 1 / factor) - 1, abs=1e-9)
    scale = fidelity.common_factor(ours, reference)
    assert fidelity.error_factor(ours, reference, scale) == pytest.approx(0, abs=1e-9)


def test_the_best_common_factor_is_not_beaten() -> None:
    ours, reference = [1.0, 1.2, 0.7], [1.1, 1.0, 1.0]
    least = fidelity.error_factor(ours, reference, fidelity.common_factor(ours, reference))
    assert all(fidelity.error_factor(ours, reference, 0.5 + k / 100) >= least - 1e-12 for k in range(100))


def test_a_block_of_table_4_holds_half_of_entry_and_exit() -> None:
    block, outside = 0.010, 0.003
    assert fidelity.paper_block_seconds(40 * block + outside, block, 40) == pytest.approx((2 * block + outside) / 2)


# --- cycles


@pytest.mark.parametrize("name", ["flash_d2c2t2", "flash_d2c8_4x4"])
def test_lent_cycles_price_the_passes_as_code_generation_does(data: Path, name: str) -> None:
    code, passes = read(data, f"{name}.hlo.txt.gz"), read(data, f"{name}.hlo-passes-only.txt.gz")
    lent, coverage = cycles.lend(passes, cycles.known_cycles([code]))
    assert coverage.share == 1
    slice_name = "v5e:4x4" if "4x4" in name else "v5e:2x4"

    def blocks(text: str) -> tuple[float, float]:
        ranked = json.loads(_core.rank(text, slice_name))
        return ranked["default"]["block_seconds"], ranked["best"]["block_seconds"]

    assert blocks(lent) == pytest.approx(blocks(code), rel=1e-12)
    assert blocks(passes) != pytest.approx(blocks(code), rel=1e-3)


def test_names_metadata_and_order_are_not_in_the_fingerprint(data: Path) -> None:
    code = read(data, "flash_d2c4.hlo.txt.gz")
    known = cycles.known_cycles([code])
    renamed = re.sub(r"%([\w.\-]+)", lambda m: f"%x.{m[1][::-1]}", code)
    renamed = re.sub(r"^(ENTRY )?(%\S+)", r"\1\2", renamed, flags=re.M)
    renamed = re.sub(r", metadata=\{[^}]*\}", "", renamed)
    assert cycles.known_cycles([renamed]) == known


def test_shapes_and_layouts_are_in_the_fingerprint() -> None:
    program = """HloModule m

%f (p: {t}) -> {t} {{
  %p = {t}{l} parameter(0)
  ROOT %n = {t}{l} negate(%p)
}}

ENTRY %main (a: {t}) -> {t} {{
  %a = {t}{l} parameter(0)
  ROOT %b = {t}{l} fusion(%a), kind=kLoop, calls=%f{c}
}}
"""
    config = ', backend_config={"window_config":{"estimated_cycles":"77"}}'
    known = cycles.known_cycles([program.format(t="bf16[8,128]", l="{1,0}", c=config)])
    assert list(known.values()) == [77]
    for array, layout, share in (("bf16[8,128]", "{1,0}", 1), ("bf16[8,256]", "{1,0}", 0), ("bf16[8,128]", "{0,1}", 0)):
        text, coverage = cycles.lend(program.format(t=array, l=layout, c=""), known)
        assert coverage.share == share
        assert ('"estimated_cycles":"77"' in text) == bool(share)
    assert cycles.lend("not HLO\n}}} {((", known)[1].fusions == 0


# --- the document


def test_the_papers_numbers_are_complete() -> None:
    workloads = {(w.slice, w.height, w.frames) for w in sweep.all_workloads()}
    assert set(tables.SPEEDUPS) == workloads
    geometric = math.exp(sum(math.log(e) for e, _ in tables.SPEEDUPS.values()) / 18)
    searched = [a for _, a in tables.SPEEDUPS.values() if a is not None]
    assert geometric == pytest.approx(1.09, abs=0.005)  # as the paper sums them up
    assert math.exp(sum(map(math.log, searched)) / 17) == pytest.approx(1.11, abs=0.005)


def test_sections_are_replaced_in_place() -> None:
    first, second = reproduce.SECTIONS[2], reproduce.SECTIONS[3]
    text = reproduce.splice("", second, "old\n")
    text = reproduce.splice(text, first, "kept\n")
    text = reproduce.splice(text, second, "new\n")
    assert "old" not in text
    assert text.index("kept") < text.index("new")
    assert reproduce.splice(text, second, "new\n") == text


def test_tables_keep_their_columns() -> None:
    lines = tables.table(["a", "b"], [["x|y", "1"]]).splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]


def test_tables_are_read_back_as_they_were_written() -> None:
    first = tables.table(["a", "b"], [["x|y", "1"], ["", "– (paper 2)"]])
    second = tables.table(["a"], [])
    assert tables.rows_of(f"Words.\n\n{first}\nMore | words.\n\n{second}") == [
        [{"a": "x|y", "b": "1"}, {"a": "", "b": "– (paper 2)"}],
        [],
    ]


def test_json_has_the_cells_of_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "answers.sqlite").touch()
    files = ["--store", str(tmp_path / "answers.sqlite"), "--out", str(tmp_path / "evaluation.md")]
    assert cli.main(["reproduce", "--only", "figure3", "--no-compile", "--quiet", "--json", *files]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["sections"]) == ["figure3"]
    (rows,) = told["sections"]["figure3"]
    assert len(rows) == 8
    for row in rows:
        assert f"| {' | '.join(row.values())} |\n" in (tmp_path / "evaluation.md").read_text()


def run(path: Path, *only: str) -> None:
    reproduce.run(path / "evaluation.md", path / "answers.sqlite", only, compile=False)


def test_figures_that_need_no_compiler_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    (tmp_path / "answers.sqlite").touch()
    seen = []
    for _ in range(2):
        run(tmp_path, "figure3", "figure6")
        seen.append([p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.suffix in (".md", ".svg")])
    assert len(seen[0]) == 3
    assert seen[0] == seen[1]


def test_permutes_reproduce_the_papers_two_levels(tmp_path: Path) -> None:
    (tmp_path / "answers.sqlite").touch()
    run(tmp_path, "figure3")
    text = (tmp_path / "evaluation.md").read_text()
    shown = re.findall(r"^\| (.+?) \| ([\d.]+) \(paper (?:about )?([\d.]+)\) \| ([\d.]+) ", text, re.M)
    assert len(shown) == 8
    for name, ours, paper, simulated in shown:
        assert float(ours) == pytest.approx(float(paper), rel=0.01), name
        assert float(simulated) == pytest.approx(float(paper), rel=0.01), name


def test_an_empty_store_says_so_and_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a compile was started")

    monkeypatch.setattr(sweep, "ask", forbidden)
    monkeypatch.setattr(context, "_workloads", lambda: (sweep.Workload("v5e:2x2", 720, 81),))
    (tmp_path / "answers.sqlite").touch()
    run(tmp_path, "coverage", "figure9")
    text = (tmp_path / "evaluation.md").read_text()
    assert "| v5e:2x2 720p 81 | 41 | 0 | 0 | 0 | 0 | – | 0 |" in text
    assert context.NOTHING in text


def test_unknown_names_and_a_missing_store_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequest, match="there are"):
        run(tmp_path, "figure5")
    out = str(tmp_path / "evaluation.md")
    assert cli.main(["reproduce", "--no-compile", "--store", str(tmp_path / "none"), "--out", out]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_what_only_one_step_of_a_row_runs_is_counted_apart() -> None:
    def bundles(count: int) -> list[str]:
        return ["{ %1 = vadd }"] * count

    delay = bundles(4)
    text = [
        *bundles(3),
        "{ LB } /* Start region 9 */",
        *bundles(10),
        "{ %p1 = scmp.ne.s32 %s1, 0 }",
        "{ %2 = sbr.rel (%p1) target = $region1 }", *delay, *bundles(20),
        "{ %p2_p9 = scmp.le.s32 %s2, 0 } /* Start/End empty region 1 :: Start region 5 */",
        "{ %3 = sbr.rel (%p2_p9) target = $region2 }", *delay, *bundles(40),
        "{ %p3 = scmp.ge.s32 %s3, 99 } /* Start/End empty region 2 */",
        "{ %4 = sbr.rel (!%p3) target = $region9 }", *delay,
        *bundles(7),
    ]  # fmt: skip
    counted = kernels.count_bundles("".join(f"  {hex(k)}   : > {line}\n" for k, line in enumerate(text)))
    assert counted == kernels.Cycles(step=1 + 10 + 2 + 4 + 2 + 4 + 40 + 2 + 4, row=20)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["512 x 512", "512 x 1024"])
def test_the_kernels_closed_form_is_the_compilers_schedule(name: str) -> None:
    shape = kernels.SHAPES[name]
    hardware = json.loads(_core.slice_json("v5e:2x2"))["hardware"]
    product, step, row = (hardware[f"attention_{k}_cycles"]["value"] for k in ("product", "step", "row"))
    counted = kernels.cycles(shape)
    assert counted.step == pytest.approx(shape.query_block * (shape.key_block / 512**2 * product + step), rel=0.02)
    assert counted.row == pytest.approx(shape.query_block * row, rel=0.02)
