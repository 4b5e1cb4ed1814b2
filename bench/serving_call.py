"""What auto_shard adds to a call after the first: `python bench/serving_call.py PLAN [CALLS]`.

Runs on CPU devices, as many as the plan has. Prints microseconds a call: the quickest and the median of ten rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

ROUNDS = 10


def main(path: str, calls: int) -> None:
    devices = len(json.loads(Path(path).read_text(encoding="utf-8"))["best"]["placement"]["device_ids"])
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

    import aoizora

    def empty(config: object) -> None: ...

    plan = aoizora.Plan.load(path)
    request = plan.data["request"]
    shape = (request["height"], request["width"], request["frames"])
    config = aoizora.build_config(request["model"], shape, cfg=request["cfg"], slice=plan.data["slice"]["name"])
    run = aoizora.auto_shard(plan=plan)(empty)
    run(config)
    bare = min(timed(empty, config, calls) for _ in range(ROUNDS))
    rounds = [timed(run, config, calls) - bare for _ in range(ROUNDS)]
    print(
        f"{min(rounds):.1f} us a call at best, {statistics.median(rounds):.1f} us in the median, {calls} calls a round"
    )


def timed(call: object, config: object, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        call(config)  # type: ignore[operator]
    return (time.perf_counter() - started) / calls * 1e6


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000)
