"""`aoizora completion SHELL`: the script that completes commands and options."""

from __future__ import annotations

import argparse
import json

SHELLS = ("bash", "zsh", "tcsh")
# What these arguments take are files; everything else is a name or a number.
_FILES = {"plan", "file", "first", "second", "out", "config", "slice", "store", "judge"}


def add_arguments(parser: argparse.ArgumentParser, whole: argparse.ArgumentParser) -> None:
    """whole: the parser of all commands, complete when the command runs."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=lambda options: run(options, whole))


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    import shtab

    from aoizora import _core
    from aoizora.serving.request import ALIASES, DTYPES

    # One of a few; the command says so itself where it is given another.
    names = {"model": [*ALIASES, *_core.model_names()], "source": ["aoizora", "maxdiffusion"], "dtype": DTYPES}
    for command in _commands(parser):
        for action in command._actions:
            action.choices = action.choices or names.get(action.dest)
            if action.dest in _FILES and action.choices is None:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(parser, shell=options.shell)
    print(json.dumps({"shell": options.shell, "script": script}) if options.json else script)
    return 0


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return list(action.choices.values())
    return []
