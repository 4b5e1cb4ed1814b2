"""What is measured beside what is predicted; the runs themselves are in serving_checks.py."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from scipy import stats

from aoizora import InvalidRequest, Plan, measure
from aoizora.commands.measure import table


def test_the_rank_correlation_is_spearmans() -> None:
    draw = random.Random(3)
    for _ in range(50):
        first = [draw.randint(0, 5) for _ in range(draw.randint(2, 9))]
        second = [draw.randint(0, 5) for _ in first]
        found = measure.spearman(first, second)
        if len(set(first)) == 1 or len(set(second)) == 1:
            assert found is None
        else:
            assert found == pytest.approx(stats.spearmanr(first, second).statistic)
    assert measure.spearman([1.0], [2.0]) is None


def test_a_variant_runs_the_runner_ups_own_sharding_on_its_own_placement(recorded_plan: Plan) -> None:
    for entry in recorded_plan.data["runners_up"]:
        chosen = measure.variant(recorded_plan, entry)
        assert chosen.candidate == entry["candidate"]
        assert chosen.mesh_shape == {axis["name"]: axis["size"] for axis in entry["candidate"]["mesh"]}
        assert chosen.axis_rules == {axis: tuple(rule) for axis, rule in entry["candidate"]["rules"].items()}
        assert chosen.data["best"]["placement"] == entry["placement"]


def test_what_ran_is_priced_as_the_planner_priced_it(recorded_plan: Plan, recording: Path) -> None:
    """The recorded code of the winner under its own placement, with the numbers the plan was made with."""
    texts = []
    for path in recording.glob("*.txt"):
        first, rest = path.read_bytes().split(b"\n", 1)
        answer = json.loads(first)
        made_for = json.loads(answer["key"][answer["key"].index("{") :])
        if answer["key"].startswith("code") and made_for["rules"] == recorded_plan.candidate["rules"]:
            texts.append(rest[answer["memory_report_bytes"] :].decode().lstrip())
    assert texts
    for text in texts:
        found = measure._priced(recorded_plan, text, "v5e:2x2", recorded_plan.data["layers"], small=False)
        assert found == pytest.approx(recorded_plan.data["best"]["predicted"]["step_seconds"], rel=1e-6)


def test_no_two_rows_of_the_table_look_alike(recorded_plan: Plan) -> None:
    entries = [recorded_plan.data["best"], *recorded_plan.data["runners_up"]]
    ran = [measure.Measured(e["sharding"], e["placement"]["order"], 0.1, [0.2]) for e in entries]
    lines = table(recorded_plan, measure.Result(ran, 3, "4 x cpu", True))
    rows = lines[2 : 2 + 2 * len(ran) : 2]
    assert len(set(rows)) == len(entries) > 1
    assert "gathered" in rows[0]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("wrong", [{"top": 0}, {"layers": 0}, {"repeats": 0}, {"warm_up": -1}])
def test_counts_below_one_are_refused(recorded_plan: Plan, wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="1 or more"):
        measure.measure(recorded_plan, **wrong)
