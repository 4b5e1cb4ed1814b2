"""The page in a real browser: what it shows, what it does by keyboard, and that it asks nobody for anything."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, Page, chromium
from report_plans import spread

from aoizora import Plan
from aoizora.report import page as pages
from aoizora.report import view

# Ratio of luminances of a text and what is behind it (WCAG 2, 1.4.3), the least over all texts that are shown.
LEAST_CONTRAST = """
() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parsed = (colour) => {
    paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => {
    const [r, g, b] = parsed(colour).map((c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const rect = element.tagName === "text" && element.parentNode.querySelector(":scope > rect");
    if (rect) return getComputedStyle(rect).fill;
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parsed(colour)[3] > 250) return colour;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  let least = [99, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.getClientRects().length || element.closest("script, style, .skip, [hidden]")) continue;
    const own = getComputedStyle(element)[element.ownerSVGElement ? "fill" : "color"];
    const [a, b] = [luminance(own), luminance(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, element.outerHTML.slice(0, 200)];
  }
  return least;
}
"""  # noqa: E501

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(plan: Plan) -> Path:
        path = tmp_path / "report.html"
        path.write_text(pages.render(plan), encoding="utf-8")
        return path

    return write


def link_bytes(page: Any) -> dict[int, float]:
    """What the large picture says each link carries."""
    found = page.eval_on_selector_all(".map .link", "all => all.map((e) => [e.dataset.link, e.dataset.bytes])")
    return {int(link): float(size) for link, size in found if float(size)}


def focused(page: Any, what: str = "e.textContent") -> Any:
    return page.evaluate(f"(() => {{ const e = document.activeElement; return {what}; }})()")


def tab_to(page: Any, wanted: str) -> None:
    """Presses the tab key until it has the first element of a selector."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if focused(page, f"e.matches({wanted!r})"):
            return
    raise AssertionError(f"the tab key never comes to {wanted}")


def test_the_page_shows_the_plan_and_asks_nobody(recorded_plan: Plan, browser: Any, written: Any) -> None:
    with Page(browser, written(recorded_plan)) as opened:
        page = opened.page
        data = recorded_plan.data
        assert page.title() == "Plan for wan2.1-1.3b, 480x832, 21 frames, v5e:2x2"
        assert page.locator("h1").inner_text() == page.title()
        assert page.locator(".map .chip").count() == 4
        assert page.locator(".map .link").count() == len(data["links"])
        collectives = data["best"]["predicted"]["block"]["collectives"]
        assert page.locator(".gallery button svg").count() == len(collectives) + 1
        assert page.locator("#runners tbody tr").count() == len(data["runners_up"]) + 1
        assert page.locator("#collectives tbody tr").count() == len(collectives)
        assert page.locator("#placements .bar").count() == len(data["placements"]["priced"])
        assert page.locator("#commands pre").count() == 5
        lanes = view.lanes(recorded_plan)
        assert page.locator("#timeline .slot").count() == sum(len(row) for lane in lanes for row in lane.rows)
        ends = page.eval_on_selector_all("#timeline .slot", "all => all.map((e) => Number(e.dataset.end))")
        assert max(ends) == pytest.approx(data["best"]["predicted"]["block_seconds"], rel=1e-9)
        assert link_bytes(page) == pytest.approx(view.block_loads(recorded_plan))
        # pointing at a link gives its bytes and milliseconds
        busiest, size = max(link_bytes(page).items(), key=lambda item: item[1])
        page.locator(f".link[data-link='{busiest}'] .reach").dispatch_event("pointermove", {"clientX": 9, "clientY": 9})
        tip = page.locator("#tip").inner_text()
        assert f"{size / 1e6:.1f} MB" in tip
        assert "ms" in tip
        # each picture is that of its collective
        for number, loads in enumerate(view.collective_loads(recorded_plan)):
            page.locator(f".gallery button[data-picture='{number}']").click()
            assert link_bytes(page) == pytest.approx({link: load for link, load in loads.items() if load})
            assert page.locator(".gallery button[aria-pressed='true']").count() == 1
        page.locator("#slice summary").click()
        page.locator("#slice details tbody tr").first.wait_for()  # a browser tells of what is opened when it likes
        assert page.locator("#slice details tbody tr").count() == len(link_bytes(page))
        assert opened.wrong == []


def test_the_keyboard_does_all(exchanging_plan: Plan, browser: Any, written: Any) -> None:
    with Page(browser, written(exchanging_plan)) as opened:
        page = opened.page
        tab_to(page, ".chip")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert "chip x1 y1" in focused(page, "e.getAttribute('aria-label')")
        assert "sends" in page.locator("#tip").inner_text()
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()
        tab_to(page, ".gallery button[data-picture='2']")
        page.keyboard.press("Enter")
        assert page.locator("#map-title").inner_text() == page.locator(".gallery [data-picture='2'] b").inner_text()
        assert page.locator("#said").inner_text() != ""
        tab_to(page, "#timeline .slot")
        page.keyboard.press("End")
        assert float(focused(page, "e.dataset.end")) == pytest.approx(
            exchanging_plan.data["best"]["predicted"]["block_seconds"], rel=1e-9
        )
        page.keyboard.press("ArrowDown")
        assert focused(page, "e.dataset.collective") is not None
        # the table of runners-up, by its heading of exposed communication: both ways
        place = 7
        tab_to(page, f"#runners th:nth-child({place}) button")
        heading = page.locator(f"#runners th:nth-child({place})")
        for way in ("ascending", "descending"):
            page.keyboard.press("Enter")
            assert heading.get_attribute("aria-sort") == way
            shown = page.locator(f"#runners tbody td:nth-child({place})").all_inner_texts()
            assert len(set(shown)) > 1
            assert [float(text) for text in shown] == sorted(map(float, shown), reverse=way == "descending")
        assert page.locator("#runners th[aria-sort]").count() == 1
        opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab_to(page, "#commands button")
        page.keyboard.press("Enter")
        # the page's policy forbids the eval with which wait_for_function asks again
        page.locator("#commands button").first.filter(has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == pages.plan_command(exchanging_plan, "plan.json")
        assert opened.wrong == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_reads_in_light_and_dark_and_on_a_phone(recorded_plan: Plan, browser: Any, written: Any, dark: bool) -> None:
    path = written(spread(recorded_plan, "v5e:4x4"))
    for size in (PHONE, {"width": 1280, "height": 900}):
        with Page(browser, path, dark=dark, size=size) as opened:
            page = opened.page
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
            ratio, where = page.evaluate(LEAST_CONTRAST)
            assert ratio >= 4.5, where
            # what a screen reader goes by: a heading for each part, a name for all that can be reached
            assert page.locator("h2").count() == page.locator("section[aria-labelledby]").count() == 8
            nameless = page.eval_on_selector_all(
                "button, a, input, summary, [tabindex='0']",
                "all => all.filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)"
                " && e.id !== 'main').length",
            )
            assert nameless == 0
            # no two chips, and no two slots of a lane, lie over each other
            boxes = page.eval_on_selector_all(
                ".map .chip rect", "all => all.map((e) => { const b = e.getBoundingClientRect();"
                " return [b.left, b.top, b.right, b.bottom]; })",
            )  # fmt: skip
            assert len(boxes) == 16
            for i, a in enumerate(boxes):
                for b in boxes[:i]:
                    assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert opened.wrong == []


def test_256_chips(recorded_plan: Plan, browser: Any, written: Any) -> None:
    plan = spread(recorded_plan, "v5e:16x16")
    with Page(browser, written(plan)) as opened:
        page = opened.page
        assert page.locator(".map .chip").count() == 256
        assert page.locator(".map .link").count() == 1024
        assert link_bytes(page) == pytest.approx(view.block_loads(plan))
        assert page.locator("#placements .bar").count() == len(plan.data["placements"]["priced"])
        ranks = page.eval_on_selector_all(".map .chip text:not(.at)", "all => all.map((e) => Number(e.textContent))")
        assert sorted(ranks) == list(range(256))
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        assert opened.wrong == []


def test_other_shapes_are_drawn(recorded_plan: Plan, browser: Any, tmp_path: Path, written: Any) -> None:
    """Three dimensions with wraps, two cores a chip: a chip for each, every link somewhere."""
    data = copy.deepcopy(recorded_plan.data)
    data["slice"] |= {"name": "cube", "dims": [2, 4, 2], "wraps": [False, True, False], "cores_per_chip": 2}
    chips = [[x, y, z] for x in range(2) for y in range(4) for z in range(2)]
    data["mesh"] = {"axis_names": ["data", "context"], "axis_sizes": [2, 16]}
    data["best"]["placement"] |= {
        "coordinates": [at for at in chips for _ in range(2)], "cores": [0, 1] * 16, "device_ids": list(range(32)),
    }  # fmt: skip

    def number(at: list[int]) -> int:
        return at[0] * 8 + at[1] * 2 + at[2]

    links = []
    for at in chips:
        for d, (size, wrap) in enumerate(zip([2, 4, 2], [False, True, False], strict=True)):
            for step in (1, -1):
                to = [*at]
                to[d] += step
                if wrap or 0 <= to[d] < size:
                    to[d] %= size
                    links.append([number(at), number(to), d])
        links += [[number(at), number(at), -1, 0, 1], [number(at), number(at), -1, 1, 0]]
    data["links"] = links
    for pattern in data["best"]["predicted"]["block"]["patterns"]:
        pattern[:] = [[1.0, list(range(len(links)))]]
    with Page(browser, written(Plan(data))) as opened:
        assert opened.page.locator(".map .chip").count() == 16
        assert opened.page.locator(".map .chip rect").count() == 32
        drawn = opened.page.eval_on_selector_all(
            ".map .link", "all => all.filter((e) => e.querySelector('.head')).length"
        )
        assert drawn == len(links)
        assert opened.wrong == []


def test_what_a_plan_says_is_shown_and_not_run(recorded_plan: Plan, browser: Any, written: Any) -> None:
    evil = "</script><script>alert(1)</script><img src=http://0.0.0.0/x onerror=alert(1)>"
    data = copy.deepcopy(recorded_plan.data)
    data["why"] = data["half_rate_winner"] = data["best"]["sharding"] = data["slice"]["name"] = evil
    data["request"]["model"] = data["best"]["placement"]["order"] = data["versions"][0] = evil
    data["lost"] = [evil]
    data["comparisons"][0]["name"] = evil
    data["placements"]["priced"][0][2][0] = evil
    for c in data["best"]["predicted"]["block"]["collectives"]:
        c["name"] = c["kind"] = evil
    for slot in data["best"]["predicted"]["block"]["timeline"]["core"]:
        slot[0] = evil
    with Page(browser, written(Plan(data))) as opened:
        assert opened.page.locator("img").count() == 0
        assert opened.page.locator("script").count() == 2
        assert evil in opened.page.locator("#why").inner_text()
        opened.page.locator(".gallery button").nth(1).click()
        assert opened.page.locator("#map-title").inner_text() == evil
        assert opened.wrong == []


def test_a_plan_of_format_1_is_drawn_without_its_schedule(recorded_plan: Plan, browser: Any, written: Any) -> None:
    data = copy.deepcopy(recorded_plan.data)
    data["version"] = 1
    del data["links"], data["placements"]["priced"]
    del data["best"]["predicted"]["block"]["timeline"], data["best"]["predicted"]["block"]["patterns"]
    with Page(browser, written(Plan(data))) as opened:
        assert "plan again" in opened.page.locator("#slice").inner_text()
        assert opened.page.locator("#runners tbody tr").count() == len(data["runners_up"]) + 1
        assert opened.wrong == []
