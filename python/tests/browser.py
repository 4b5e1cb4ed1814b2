"""Debian's Chromium, without a window, on pages that are files."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """The browser; skips where it or what drives it is not installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Page:
    """A page that is open, and what it did that it must not: errors, requests, dialogs."""

    def __init__(self, browser: Any, path: Path, *, dark: bool = False, size: dict[str, int] = DESK) -> None:
        self.context = browser.new_context(color_scheme="dark" if dark else "light", viewport=size, offline=True)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        own = path.resolve().as_uri()
        self.page.on("console", lambda message: self.wrong.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append("dialog"), dialog.dismiss()))
        self.page.on(
            "request",
            lambda request: (
                None if request.url == own or request.url.startswith("data:") else self.wrong.append(request.url)
            ),
        )
        self.page.goto(own)
        self.page.wait_for_selector("html[data-drawn=yes]", timeout=20_000)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
