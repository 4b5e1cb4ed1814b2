"""Prices the placements of one sharding (paper, Figure 2): data 2 x context 2 x tensor 2 on v5e:2x4, 480p, 81 frames.

    python bench/placements.py

One compile (HLO passes) serves all of them. Prints each placement's block time and the spread, at the links' nominal
rate and at half of it.
"""

from __future__ import annotations

import json
import sys

from aoizora import _core
from aoizora.compiler.queue import WorkerQueue

SLICE = "v5e:2x4"
REQUEST = {"model": "wan2.1-14b", "height": 480, "width": 832, "frames": 81}
MESH = [{"name": name, "size": size} for name, size in (("data", 2), ("fsdp", 1), ("context", 2), ("tensor", 2))]
SIZES = {axis["name"]: axis["size"] for axis in MESH}
RULES = {
    "batch": ["data"], "sequence": ["context"], "embed": ["context"], "heads": ["tensor"], "mlp": ["tensor"],
}  # fmt: skip
PAPER_SPREAD_PERCENT = 16.6  # paper, section 3, Observation 1: a measured step, best to worst


def compiled(candidate: dict, request: str, places: list[tuple[list[int], int]]) -> str:
    with WorkerQueue(json.loads(request), SLICE, places, workers=1) as queue:
        job = {"id": 1, "candidate": candidate, "rung": "passes", "priority": 0, "layers": 3, "placement": None}
        queue.submit(json.dumps({**job, "own_process": False}))
        answer = queue.next()
    if answer["outcome"] != "ok":
        sys.exit(answer["failure"])
    return str(answer["text"])


def main() -> int:
    request = _core.request_json(json.dumps(REQUEST))
    workload = _core.make_workload(request)
    places = _core.slice_devices(SLICE)
    ids = {tuple(chip): i for i, (chip, _) in enumerate(places)}
    for attention in ("gathered", "ulysses"):
        candidate = {
            "mesh": MESH, "rules": RULES, "attention": attention, "blocks": {"queries": 512, "keys": 512},
            "compiler_options": {},
        }  # fmt: skip
        text = compiled(candidate, request, places)
        found = json.loads(_core.distinct_axis_orders(json.dumps(SIZES), SLICE, ["data", "context", "tensor"], []))
        print(f"{attention}: {len(found['placements'])} placements")
        spreads = {}
        for rate in (1.0, 0.5):
            blocks = []
            for placement in found["placements"]:
                devices = [ids[tuple(chip)] for chip in placement["coordinates"]]
                score = json.loads(
                    _core.score(text, workload, json.dumps(candidate), SLICE, devices, 40, "passes", rate)
                )
                blocks.append((score["block_seconds"] * 1e3, placement["order"]))
            spreads[rate] = 100 * (max(blocks)[0] / min(blocks)[0] - 1)
            for block, order in sorted(blocks):
                print(f"  links at {rate:g}: {block:8.2f} ms a block  {order}")
        print(
            f"  spread {spreads[1.0]:.1f} % at the nominal rate, {spreads[0.5]:.1f} % at half of it; "
            f"the paper measured {PAPER_SPREAD_PERCENT} %"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
