"""The page of amlp-fairseq watch, as a parser of HTML and a browser see it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from amlp_fairseq.translator.page import render
from amlp_fairseq.translator.steps import MASK, WRITE, Decoding, Step

HOSTILE = """</script><script>alert("1")</script> <!-- & 'é' \u2028"""
LONG = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen"
CHROMIUM = shutil.which("chromium")
EN_DE = ("en", "de")


def decodings() -> list[Decoding]:
    """Two words from both ends in two calls, and three words that are refined in three."""
    ends = (
        Step(1, WRITE, ("das", None, HOSTILE), (0.9, None, 0.8), (0, 2), False),
        Step(2, WRITE, ("das", LONG, HOSTILE), (0.9, 0.7, 0.8), (1,), True),
    )
    refined = (
        Step(1, WRITE, ("a", "a", "c"), (0.9, 0.2, 0.8), (0, 1, 2), False),
        Step(2, MASK, ("a", None, "c"), (0.9, None, 0.8), (1,), False),
        Step(2, WRITE, ("a", "b", "c"), (0.9, 0.6, None), (1,), False),
        Step(3, WRITE, ("a", "b", "c"), (0.9, 0.6, 0.8), (), False),
    )
    source = tuple("w" * 3 for _ in range(40))
    attention = tuple(tuple(1 / 41 for _ in range(41)) for _ in range(3))
    arrows = {"directions": (0, 0, 1), "arrows": ("→", "←"), "attention": attention}
    return [
        Decoding("both-ends", "interleaved", EN_DE, HOSTILE, source, "das " + HOSTILE, 2, ends, **arrows),
        Decoding("refined", "iterative refinement", EN_DE, HOSTILE, source, "a b c", 3, refined),
    ]


class Scripts(HTMLParser):
    """The texts of a page's script elements, and every address in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.addresses: list[str | None] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "script"
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts.append(data)
            self.inside = False


def test_data_stay_data() -> None:
    scripts = Scripts(render(decodings()))
    assert len(scripts.texts) == 2
    data = json.loads(scripts.texts[0])
    assert data["systems"][0]["sentence"] == HOSTILE
    assert data["systems"][0]["steps"][1]["words"] == ["das", LONG, HOSTILE]
    assert data["moments"] == [0, 1, 1.5, 2, 3]
    assert scripts.addresses == ["data:,"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    path = tmp_path / "page.html"
    path.write_text(render(decodings()), encoding="utf-8")
    return path.as_uri()


def opened(browser: Any, address: str, **context: Any) -> Any:
    """A page that fails the test with anything on its console."""
    page = browser.new_context(**{"reduced_motion": "no-preference", **context}).new_page()
    page.errors = []
    page.on("console", lambda message: page.errors.append(message.text))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda request: request.url == address.split("#")[0] or page.errors.append(request.url))
    page.goto(address)
    return page


def words(page: Any, system: int) -> list[str]:
    places = page.locator("article").nth(system).locator(".now")
    return [text.strip() for text in places.all_text_contents()]


def test_steps_and_controls(browser: Any, address: str) -> None:
    page = opened(browser, address + "#0")
    assert words(page, 0) == ["", "", ""]
    shown = [words(page, 1)]
    for _ in range(4):
        page.get_by_label("One step forward").click()
        shown.append(words(page, 1))
    assert shown == [["", "", ""], ["a", "a", "c"], ["a", "", "c"], ["a", "b", "c"], ["a", "b", "c"]]
    assert words(page, 0) == ["das", LONG, HOSTILE.strip()]
    assert page.locator(".calls b").all_text_contents() == ["2", "3"]
    assert page.get_by_label("One step forward").is_disabled()
    page.keyboard.press("ArrowLeft")
    page.get_by_label("One step back").click()
    assert page.locator("article").nth(1).locator(".masked").count() == 1
    assert "Masks its least certain words: 1 of 3." in page.locator("article").nth(1).inner_text()
    page.keyboard.press("Home")
    assert page.locator(".calls b").all_text_contents() == ["0", "0"]
    page.get_by_label("Step", exact=True).fill("1")
    assert words(page, 0)[:2] == ["das", ""]
    page.get_by_label("Speed").select_option("200")  # ms
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Again").wait_for()
    assert page.locator(".calls b").all_text_contents() == ["2", "3"]
    assert page.errors == []


def test_plays_by_itself_unless_motion_is_unwanted(browser: Any, address: str) -> None:
    page = opened(browser, address)
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Play").is_visible()
    still = opened(browser, address, reduced_motion="reduce")
    assert still.get_by_role("button", name="Again").is_visible()
    assert words(still, 1) == ["a", "b", "c"]
    assert page.errors == still.errors == []


def test_a_narrow_screen(browser: Any, address: str) -> None:
    page = opened(browser, address + "#9", viewport={"width": 360, "height": 740})
    page.locator("summary").first.click()
    assert page.locator(".map").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.querySelector('.map').scrollWidth > innerWidth")  # it scrolls by itself
    inside = """() => [...document.querySelectorAll("main :not(.map *), .controls *")].every((node) => {
        const box = node.getBoundingClientRect();
        return box.width === 0 || box.left >= 0 && box.right <= innerWidth;
    })"""
    assert page.evaluate(inside)
    assert page.errors == []


def test_light_and_dark(browser: Any, address: str) -> None:
    """The text stands out from its ground by the 4.5 to 1 of WCAG, in the theme of the system and in the other."""
    for scheme in ("light", "dark"):
        page = opened(browser, address + "#1", color_scheme=scheme)
        grounds = [contrast(page)]
        page.get_by_role("button", name="Dark" if scheme == "light" else "Light").click()
        grounds.append(contrast(page))
        assert (grounds[0] > grounds[1]) == (scheme == "light")
        assert page.errors == []


def contrast(page: Any) -> float:
    """The luminance of the ground of the cards, after a check of all texts on it."""
    texts = page.evaluate(
        """() => ["h2", ".how", ".what", ".calls span", "summary", ".place small"].map(
            (name) => getComputedStyle(document.querySelector(name)).color)"""
    )
    ground = luminance(page.evaluate("getComputedStyle(document.querySelector('article')).backgroundColor"))
    for text in texts:
        dark, light = sorted((ground, luminance(text)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, text
    return ground


def luminance(colour: str) -> float:
    """WCAG's, of ``rgb(r, g, b)``."""
    channels = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
