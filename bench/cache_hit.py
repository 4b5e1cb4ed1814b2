"""Times `aoizora plan` where the plan is in the cache already: a fresh interpreter each time.

    python bench/cache_hit.py plan.json [--runs N]

plan.json is put into a cache folder of its own under its own request, so nothing is planned.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aoizora import Plan, _core, cache

PROGRAM = """
import time
started, used = time.perf_counter(), time.process_time()
import sys
from aoizora.cli import main
code = main(sys.argv[1:])
print(time.perf_counter() - started, time.process_time() - used, "jax" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    plan = Plan.load(options.plan)
    request, slice_ = plan.data["request"], plan.data["slice"]["name"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "AOIZORA_CACHE_DIR": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        os.environ["AOIZORA_CACHE_DIR"] = folder
        defaults = {"verify": 1, "survivor_fraction": 0.15, "finalists": 2}
        settings = json.loads(_core.settings_json(json.dumps(defaults)))
        cache.store(cache.key_of(request, json.loads(_core.slice_json(slice_)), settings), plan)
        arguments = ["plan", "--model", request["model"], "--size", f"{request['height']}x{request['width']}"]
        arguments += ["--frames", str(request["frames"]), "--slice", slice_, "--out", f"{folder}/plan.out", "--quiet"]
        whole, inside, processor = [], [], []
        for run in range(options.runs + 1):  # the first one fills the bytecode and the disk's cache
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=True
            )
            whole.append(time.perf_counter() - started)
            seconds, used, jax = done.stderr.split()
            if jax != "False":
                sys.exit("a hit imported jax")
            if run == 0:
                whole.clear()
                continue
            inside.append(float(seconds))
            processor.append(float(used))
    for what, values in (
        ("imports and command, interpreter start left out", inside),
        ("the same, processor time", processor),
        ("whole process, interpreter start included", whole),
    ):
        print(f"{what}: least {min(values) * 1e3:.0f} ms, median {statistics.median(values) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
