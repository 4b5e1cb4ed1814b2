"""M̂ beside the compiler's own word, on real compiles of every distinct sharding of one tight request."""

from __future__ import annotations

import itertools
import json

import pytest

from aoizora import _core
from aoizora.compiler.queue import WorkerQueue


@pytest.mark.slow
def test_the_guard_never_rejects_what_fits_and_rejects_half_of_what_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slice_name = "v5e:2x2"
    request = _core.request_json(json.dumps({"model": "wan2.1-14b", "height": 720, "width": 1280, "frames": 81}))
    workload = _core.make_workload(request)
    no_guard = json.dumps({"hbm_budget_bytes": 2**50, "minimum_weight_sharding": 1})
    found = json.loads(_core.enumerate(workload, slice_name, no_guard))["candidates"]
    candidates = [c.get("candidate", c) for c in found]
    slice_ = json.loads(_core.slice_json(slice_name))
    budget = slice_["hardware"]["hbm_bytes"]["value"]
    estimates = [
        json.loads(_core.memory_estimate(workload, json.dumps(candidate)))["total_bytes"] for candidate in candidates
    ]
    places = [(list(chip), 0) for chip in itertools.product(*map(range, slice_["dims"]))]
    fits: dict[int, bool] = {}
    with WorkerQueue(json.loads(request), slice_name, places) as queue:
        for i, candidate in enumerate(candidates):
            job = {
                "id": i, "candidate": candidate, "rung": "passes", "priority": i, "layers": 40,
                "placement": None, "own_process": False,
            }  # fmt: skip
            queue.submit(json.dumps(job))
        for _ in candidates:
            answer = queue.next()
            assert answer["outcome"] in ("ok", "out_of_memory"), answer["failure"]
            fits[answer["id"]] = answer["outcome"] == "ok"
    refused = [i for i in fits if not fits[i]]
    rejected = [i for i in fits if estimates[i] > budget]
    wrong = [i for i in rejected if fits[i]]
    with capsys.disabled():
        print(
            f"\n{len(candidates)} shardings: the compiler refuses {len(refused)}; the guard rejects {len(rejected)}, "
            f"{len(set(rejected) & set(refused))} of the refused and {len(wrong)} of those that fit"
        )
    assert not wrong, [candidates[i] for i in wrong]
    assert len(set(rejected) & set(refused)) >= len(refused) / 2
