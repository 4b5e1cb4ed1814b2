"""One trace for all candidates that differ only in annotations.

The rule of a weight axis that no computation depends on (embed, mlp) reaches the lowered program only through sharding
annotations. Such axes are traced on stand-in mesh axes of size 1, and the candidate's own mesh axes are written in
their place in the text.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STAND_IN = "stand_in_"
"""How the name of a stand-in mesh axis starts."""

_LIST = re.compile(r"<@mesh, \[(.*?)\](?=[>,])")
_ENTRY = re.compile(r"\{([^{}]*)\}")
_MESH_AXIS = re.compile(rf', "{STAND_IN}\w+"=1')
_MESH_ATTRIBUTE = re.compile(rf', \{{name = "{STAND_IN}\w+", size = 1 : i64\}}')
_MANUAL_AXIS = re.compile(rf', "{STAND_IN}\w+"')


def stand_in(candidate: Mapping[str, Any], axes: Sequence[str]) -> dict[str, Any]:
    """The candidate with the rule of each of `axes` on a mesh axis of its own, of size 1."""
    return {
        **candidate,
        "mesh": [*candidate["mesh"], *({"name": STAND_IN + axis, "size": 1, "stand_in": True} for axis in axes)],
        "rules": {**candidate["rules"], **{axis: [STAND_IN + axis] for axis in axes}},
    }


def trace_key(candidate: Mapping[str, Any], axes: Sequence[str], layers: int) -> str:
    """Equal for candidates whose traces differ only in the annotations of `axes`."""
    kept = {name: value for name, value in candidate.items() if name not in ("rules", "compiler_options")}
    rules = {axis: rule for axis, rule in candidate["rules"].items() if axis not in axes}
    text = json.dumps([kept, rules, sorted(axes), layers], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def annotate(text: str, candidate: Mapping[str, Any], axes: Sequence[str]) -> str:
    """The lowered program (MLIR text) of a stand-in candidate, as it would be for `candidate`.

    Where one value would then name a mesh axis twice, the dimension further left keeps it.
    """
    sizes = {axis["name"]: axis["size"] for axis in candidate["mesh"]}
    rules = {STAND_IN + axis: [name for name in candidate["rules"].get(axis, []) if sizes[name] > 1] for axis in axes}

    def rewrite(match: re.Match[str]) -> str:
        dims = match.group(1)
        if STAND_IN not in dims:
            return match.group(0)
        used = set(re.findall(r'"(\w+)"', dims))

        def entry(found: re.Match[str]) -> str:
            name = found.group(1).strip('"')
            if name not in rules:
                return found.group(0)
            mine = [axis for axis in rules[name] if axis not in used]
            used.update(mine)
            return "{" + ", ".join(f'"{axis}"' for axis in mine) + "}"

        return f"<@mesh, [{_ENTRY.sub(entry, dims)}]"

    text = _LIST.sub(rewrite, text)
    text = _MESH_ATTRIBUTE.sub("", _MESH_AXIS.sub("", text))
    return _MANUAL_AXIS.sub("", text)


class Traces:
    """Traced texts, in memory and in a folder that the workers of one queue share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._texts: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        if key not in self._texts:
            try:
                self._texts[key] = (self._folder / key).read_text(encoding="utf-8")
            except OSError:
                return None
        return self._texts[key]

    def keep(self, key: str, text: str) -> None:
        self._texts[key] = text
        self._folder.mkdir(exist_ok=True)
        part = self._folder / f"{key}.{os.getpid()}"
        part.write_text(text, encoding="utf-8")
        part.replace(self._folder / key)
