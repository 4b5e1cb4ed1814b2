#!/usr/bin/env python3
"""Prints what pyproject.toml asks for, one requirement a line: `build` or the name of an extra."""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())
    for name in sys.argv[1:]:
        extras = project["project"]["optional-dependencies"]
        print(*(project["build-system"]["requires"] if name == "build" else extras[name]), sep="\n")


if __name__ == "__main__":
    main()
