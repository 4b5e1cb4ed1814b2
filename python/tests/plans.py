"""Plans for slices and sharding no recording is there for: the recorded plan's file with another of the planner's
candidates in it, on one of its axis orders."""

from __future__ import annotations

import copy
import json

from aoizora import Plan, _core
from aoizora.models import wan

TINY = wan.WanConfig(num_attention_heads=16, attention_head_dim=12, ffn_dim=64, num_layers=2, text_dim=32, freq_dim=16)
LATENTS, TEXT_LENGTH = (16, 3, 10, 6), 7


def candidates(slice_name: str, config: wan.WanConfig = TINY) -> list[dict]:
    """All that the planner would consider for a model on a slice, with CFG."""
    table = config.table((2, *LATENTS), TEXT_LENGTH, "f32")
    found = json.loads(_core.enumerate(json.dumps(table), slice_name))["candidates"]
    return [entry["candidate"] for entry in found]


def varied(slice_name: str, attention: str) -> dict:
    """Of the candidates with an attention kind, the one that uses most: mesh axes, then divided logical axes."""

    def uses(candidate: dict) -> tuple[int, int, str]:
        axes = sum(axis["size"] > 1 for axis in candidate["mesh"])
        return axes, sum(bool(rule) for rule in candidate["rules"].values()), json.dumps(candidate, sort_keys=True)

    return max((c for c in candidates(slice_name) if c["attention"] == attention), key=uses)


def plan_of(recorded: Plan, candidate: dict, slice_name: str, config: wan.WanConfig = TINY) -> Plan:
    """A plan with this candidate, on the last of its distinct axis orders."""
    data = copy.deepcopy(recorded.data)
    mesh = {axis["name"]: axis["size"] for axis in candidate["mesh"]}
    place = json.loads(_core.distinct_axis_orders(json.dumps(mesh), slice_name))["placements"][-1]
    ids = {tuple(at): number for number, (at, _) in enumerate(_core.slice_devices(slice_name))}
    size = json.loads(_core.slice_json(slice_name))["dims"][0]
    data["slice"] = json.loads(_core.slice_json(slice_name))
    data["mesh"] = {"axis_names": list(mesh), "axis_sizes": list(mesh.values())}
    data["axis_rules"] = [[axis, rule] for axis, rule in candidate["rules"].items()]
    data["attention"] = candidate["attention"]
    data["kernel_blocks"] = candidate["blocks"]
    data["best"]["candidate"] = candidate
    data["best"]["placement"] = {
        "order": place["order"],
        "coordinates": place["coordinates"],
        "cores": [0] * len(ids),
        "device_ids": [x + size * y for x, y in place["coordinates"]],
    }
    data["parameters"] = {
        tensor["name"]: ([[]] if tensor["name"].startswith("blocks.") else [])
        + [[a for a in candidate["rules"].get(dim["axis"] or "", []) if mesh[a] > 1] for dim in tensor["dims"]]
        for tensor in config.table((2, *LATENTS), TEXT_LENGTH, "f32")["weights"]
    }
    return Plan(data)
