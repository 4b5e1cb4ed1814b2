"""One of several processes that serve together: `python hosts_checks.py ADDRESS COUNT INDEX PLAN`. Prints JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aoizora
from aoizora import Plan, cache
from aoizora.serving import hosts, resolve


def attempt(call: Any) -> str:
    try:
        return str(call())
    except aoizora.Error as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    address, count, index, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    jax.distributed.initialize(address, count, index)
    config = aoizora.build_config("wan2.1-1.3b", chips=4)
    resolved = []
    original = resolve.plan_for
    resolve.plan_for = lambda *arguments: resolved.append(1) or original(*arguments)  # type: ignore[func-returns-value]
    result: dict[str, Any] = {}

    @aoizora.auto_shard(quiet=True)
    def generate(config: Any) -> Any:
        strategy = aoizora.active_strategy()
        spec = jax.sharding.NamedSharding(strategy.mesh, jax.sharding.PartitionSpec(strategy.mesh.axis_names))
        ranks = jax.make_array_from_callback((4,), spec, lambda at: np.arange(4.0)[at])
        return strategy.plan, float(jax.jit(jnp.sum)(ranks))

    result["missing"] = attempt(lambda: generate(config))  # no cache anywhere, and nobody may plan
    result["asked"] = len(resolved)
    if index == 0:
        cache.make_folder()
        cache.store(resolve._key(config.request), Plan.load(path))
    plan, total = generate(config)
    result["total"] = total
    result["digest"] = hashlib.sha256(plan.dumps().encode()).hexdigest()
    file = path if index == 0 else "/nonexistent/plan.json"
    result["file"] = attempt(aoizora.auto_shard(plan=file)(lambda: aoizora.active_strategy().plan.data == plan.data))
    if index:  # as if the text had changed on its way
        hosts.digest = lambda text: hashlib.sha256(text.encode() + b"!").hexdigest()
    result["damaged"] = attempt(lambda: hosts.shared("damaged", lambda: Plan.load(path)).data["layers"])
    print(json.dumps(result), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
