"""Plans to draw: the recorded one on other slices, with loads and a schedule that its pictures can be checked by."""

from __future__ import annotations

import copy
import json
import math

from aoizora import Plan, _core
from aoizora.report import view


def spread(recorded: Plan, slice_name: str) -> Plan:
    """The recorded plan's block on all of a slice: every pattern loads the links along x, or y, or all, unevenly."""
    data = copy.deepcopy(recorded.data)
    described = json.loads(_core.slice_json(slice_name))
    links = _core.slice_links(slice_name)
    devices = _core.slice_devices(slice_name)
    mesh = {"data": 2, "fsdp": 1, "context": math.prod(described["dims"]) // 4, "tensor": 2}
    orders = json.loads(_core.distinct_axis_orders(json.dumps(mesh), slice_name))["placements"]
    data["slice"] = described
    data["links"] = [[a, b, d] if d >= 0 else [a, b, d, c, e] for a, b, d, c, e, _ in links]
    data["mesh"] = {"axis_names": list(mesh), "axis_sizes": list(mesh.values())}
    data["best"]["placement"] = {
        "order": orders[-1]["order"],
        "coordinates": orders[-1]["coordinates"],
        "cores": [0] * len(devices),
        "device_ids": list(range(len(devices))),
    }
    seconds = data["best"]["predicted"]["block_seconds"]
    priced = [[seconds * (1 + 0.002 * i), 1 + 200 * (i % 2), [order["order"]]] for i, order in enumerate(orders)]
    data["placements"] = {"distinct": sum(count for _, count, _ in priced), "best_block_seconds": seconds,
                          "worst_block_seconds": priced[-1][0], "priced": priced}  # fmt: skip
    block = data["best"]["predicted"]["block"]
    for number, pattern in enumerate(block["patterns"]):
        dimensions = ({0}, {1}, {0, 1})[number % 3]
        by_load: dict[float, list[int]] = {}
        for link, (start, _, dimension, *_) in enumerate(links):
            if dimension in dimensions:
                by_load.setdefault((1 + start % 3) / 4, []).append(link)
        pattern[:] = [[load, members] for load, members in sorted(by_load.items(), reverse=True)]
    plan = Plan(data)
    view.lanes(plan)
    return plan
