"""`aoizora topology v5e:4x4`: a slice with its links and numbers."""

from __future__ import annotations

import argparse
import json
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slice", metavar="SLICE", help="slice, or a descriptor file")
    parser.add_argument("--json", action="store_true", help="print all that is known of it as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from aoizora.report import slices
    from aoizora.report.printable import people

    found = slices.described(options.slice)
    if options.json:
        print(json.dumps(found))
    else:
        sys.stdout.write(people(slices.text(found, options.slice)))
    return 0
