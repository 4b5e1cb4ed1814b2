"""`aoizora export` and `aoizora check`: a plan beside the configuration a user has."""

from __future__ import annotations

import argparse
import json
import sys


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json")
    parser.add_argument("--to", choices=("maxdiffusion",), default="maxdiffusion", help="the package (maxdiffusion)")
    parser.add_argument("--json", action="store_true", help="print its keys and their values as JSON")
    parser.set_defaults(run=export)


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="plan.json")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="as on MaxDiffusion's command line (stock)")
    parser.add_argument("--config", default=None, metavar="FILE", help="its yml")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=check)


def export(options: argparse.Namespace) -> int:
    from aoizora.integrations import maxdiffusion
    from aoizora.plan_file import Plan

    plan = Plan.load(options.plan)
    if options.json:
        print(json.dumps({"compiler_options": plan.data["compiler_options"], "keys": maxdiffusion.settings(plan)}))
        return 0
    sys.stdout.write(maxdiffusion.export(plan))
    return 0


def check(options: argparse.Namespace) -> int:
    from aoizora.integrations import deployed
    from aoizora.plan_file import Plan

    found = deployed.check(Plan.load(options.plan), deployed.read_keys(options.keys, options.config))
    candidate = found.deployment.candidate
    if options.json:
        print(json.dumps({
            "candidate": candidate, "notes": found.deployment.notes, "step_seconds": found.step_seconds,
            "best_order_step_seconds": found.best_order_step_seconds, "plan_step_seconds": found.plan_step_seconds,
            "percent": found.percent, "video_seconds": found.video_seconds, "steps": found.steps,
        }))  # fmt: skip
        return 0
    mesh = " x ".join(f"{axis['name']} {axis['size']}" for axis in candidate["mesh"] if axis["size"] > 1)
    print(f"today   {found.step_seconds * 1e3:9.2f} ms a step: {mesh or 'one device'}, {candidate['attention']}")
    print(f"plan    {found.plan_step_seconds * 1e3:9.2f} ms a step")
    more, kind = found.percent, "longer" if found.percent >= 0 else "shorter"
    seconds = abs(found.video_seconds)
    print(f"today takes {abs(more):.1f} % {kind} than the plan: {seconds:.2f} s a video of {found.steps} steps")
    order = 100 * (found.step_seconds / found.best_order_step_seconds - 1)
    print(f"of that the device order alone is {order:.1f} %: today's sharding on its best order takes "
          f"{found.best_order_step_seconds * 1e3:.2f} ms")  # fmt: skip
    for note in found.deployment.notes:
        print(f"note: {note}")
    print("Both by the HLO passes, predicted.")
    return 0
