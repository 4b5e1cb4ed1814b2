"""Checks that need a process of their own: functions `check_...` of a script, which prints what became of each."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def names(script: Path) -> list[str]:
    """The checks in a script, read off its text."""
    lines = script.read_text().splitlines()
    return [line.split("(")[0].removeprefix("def ") for line in lines if line.startswith("def check_")]


def run(module: Mapping[str, Any]) -> None:
    """In the script: runs its checks; prints in one line their tracebacks by name, empty where one holds."""
    results = {}
    for name, check in list(module.items()):
        if name.startswith("check_"):
            try:
                check()
                results[name] = ""
            except BaseException:
                results[name] = traceback.format_exc()
    print("\n" + json.dumps(results))


def outcomes(printed: str) -> dict[str, str]:
    """What run() printed last."""
    found: dict[str, str] = json.loads(printed.splitlines()[-1])
    return found
