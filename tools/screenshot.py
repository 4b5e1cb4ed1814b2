#!/usr/bin/env python3
"""Pictures of the page that `aoizora report` draws, for docs/: screenshot.py PLAN OUT.png [--dark] [--phone]. With
Debian's Chromium and the packages playwright and pillow, in an environment that has aoizora."""

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from aoizora import Plan
from aoizora.report import page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan")
    parser.add_argument("out")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true")
    options = parser.parse_args()
    size = {"width": 390, "height": 1500} if options.phone else {"width": 1180, "height": 1720}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        path = Path(folder) / "report.html"
        path.write_text(page.render(Plan.load(options.plan)), encoding="utf-8")
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(viewport=size, color_scheme="dark" if options.dark else "light")
        opened = context.new_page()
        opened.goto(path.as_uri())
        opened.wait_for_selector("html[data-drawn=yes]")
        picture = Image.open(io.BytesIO(opened.screenshot()))
        picture.convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            options.out, optimize=True
        )
        browser.close()


if __name__ == "__main__":
    main()
