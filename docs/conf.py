"""The documentation site: `make docs` builds it, with every warning and every broken reference an error."""

from __future__ import annotations

import shutil
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

project = "AoiZora"
author = "AoiZora's authors"
version = release = version_of("aoizora")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxarg.ext"]
html_theme = "furo"
html_title = f"AoiZora {release}"
exclude_patterns = ["figures"]
nitpicky = False
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"

ROOT = Path(__file__).parent.parent
ROOMS = [
    "workload",
    "topology",
    "candidates",
    "ir",
    "prediction",
    "placement",
    "ranking",
    "planner",
    "simulation",
    "baseline",
]


def write_headers(app: Sphinx) -> None:
    """A page for each room: its headers as they are, for each is written to be read."""
    pages = Path(app.srcdir) / "cpp"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir()
    for room in ROOMS:
        headers = sorted(path for path in (ROOT / "aoizora" / room).glob("*.h") if is_public(path))
        text = f"# {room}\n"
        for header in headers:
            text += f"\n## {header.name}\n\n```{{literalinclude}} ../../aoizora/{room}/{header.name}\n"
            text += ":language: cpp\n:lines: 2-\n```\n"
        (pages / f"{room}.md").write_text(text, encoding="utf-8")


def is_public(header: Path) -> bool:
    return not header.name.startswith("test_") and not header.name.endswith("_impl.h")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_headers)
