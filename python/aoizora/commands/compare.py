"""`aoizora compare A B`: two plans, or two compiled programs, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from aoizora.errors import InvalidRequest, ParseError
from aoizora.plan_file import WRITTEN_BY, Plan, of_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="plan.json, or HLO or StableHLO text, gzip or plain")
    parser.add_argument("second", metavar="B", help="another of the same kind")
    parser.add_argument("--slice", default="", metavar="NAME", help="of programs: price them on this slice")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from aoizora.report import comparing
    from aoizora.report.printable import people

    names = (options.first, options.second)
    loaded = [_load(name) for name in names]
    if isinstance(loaded[0], Plan) != isinstance(loaded[1], Plan):
        raise InvalidRequest(f"{names[0]} and {names[1]} are a plan and a program: compare two of one kind")
    parts = []
    for name, one in zip(names, loaded, strict=True):
        with of_file(name):
            parts.append(comparing.of_plan(one) if isinstance(one, Plan) else _program(one, options.slice))
    found = comparing.side_by_side(parts[0], parts[1])
    if options.json:
        print(json.dumps({"a": names[0], "b": names[1], **comparing.as_json(found)}))
    else:
        sys.stdout.write(people(comparing.text(names, found)))
    return 0


def _program(text: str, slice_name: str) -> dict[str, dict[str, Any]]:
    from aoizora import program_text
    from aoizora.report import comparing

    try:
        return comparing.of_program(text, slice_name)
    except ParseError as error:
        if program_text.looks_like(text[:4096].encode("utf-8", "replace")):
            raise
        raise ParseError(f"{error}, nor a plan.json ({WRITTEN_BY})", error.line, error.column) from None


def _load(name: str) -> Plan | str:
    """A plan is a JSON object; everything else is taken for a program."""
    from aoizora import program_text

    text = program_text.read(name)
    if text.lstrip().startswith("{"):
        with of_file(name):
            return Plan.loads(text)
    return text
