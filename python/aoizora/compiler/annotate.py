"""Lowered programs of candidates, as text, from as few traces as they need.

A builder with a `stand_in` (aoizora.models.step) names what to trace in a candidate's place; the C++ library writes the
candidate's own annotations into the text of that trace.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from aoizora import _core


class Traces:
    """Traced texts, in memory and in a folder that the workers of one queue share."""

    def __init__(self, folder: Path) -> None:
        self.made = 0
        self._folder = folder
        self._texts: dict[str, str] = {}

    def get(self, key: str, trace: Callable[[], str]) -> str:
        """The text kept under a key, or the one `trace` makes."""
        if key not in self._texts:
            try:
                text = (self._folder / key).read_text(encoding="utf-8")
            except OSError:
                text = trace()
                self.made += 1
                self._keep(key, text)
            self._texts[key] = text
        return self._texts[key]

    def _keep(self, key: str, text: str) -> None:
        self._folder.mkdir(exist_ok=True)
        part = self._folder / f"{key}.{os.getpid()}"
        part.write_text(text, encoding="utf-8")
        part.replace(self._folder / key)


def lowered_text(
    build: Callable[..., Any],
    request: Mapping[str, Any],
    candidate: Mapping[str, Any],
    layers: int,
    attention: str,
    make_mesh: Callable[[dict[str, int]], Any],
    traces: Traces,
) -> str | None:
    """The lowered program of a candidate (its mesh a list) from a shared trace; None where it needs one of its own.

    Without a kernel ("opaque") nothing will run the program: names of places and values of large constants are left
    out.
    """
    given = getattr(build, "given", None)
    if given is not None:
        text, first = given(request, attention)
        return _core.annotate(text, _readable(candidate, candidate), attention == "opaque", first)
    stand_in = getattr(build, "stand_in", None)
    traced_as = stand_in(request, candidate, attention) if stand_in is not None else None
    if traced_as is None:
        return None
    parts = [request, traced_as, layers]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def trace() -> str:
        mesh = make_mesh({axis["name"]: axis["size"] for axis in traced_as[0]["mesh"]})
        function, arguments = build(request, traced_as[0], mesh, layers, traced_as[1])
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
        return str(lowered.as_text(debug_info=attention != "opaque"))

    return _core.annotate(traces.get(key, trace), _readable(candidate, traced_as[0]), attention == "opaque")


def _readable(candidate: Mapping[str, Any], traced_as: Mapping[str, Any]) -> str:
    """The candidate as the C++ library reads it, with everything said."""
    return json.dumps(
        {
            "mesh": [{"name": axis["name"], "size": axis["size"]} for axis in candidate["mesh"]],
            "rules": {axis: list(names) for axis, names in candidate["rules"].items()},
            "attention": candidate.get("attention", "gathered"),
            "blocks": traced_as["blocks"],
            "compiler_options": {},
        }
    )
