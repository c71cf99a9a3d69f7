"""The page in a real browser: it opens quickly, is read by keyboard, and axe finds nothing to improve."""

import datetime as dt
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.trace.page import page as page_of
from tests.unit.trace.recordings import MiB, Script, busy_recording

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("chromium is missing: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
axe = pytest.importorskip("axe_core_python", reason="axe is missing: pip install axe-core-python")

pytestmark = pytest.mark.full
AXE = Path(axe.__file__).with_name("axe.min.js")
REQUESTS = 10_000
# On a busy machine it takes about a second.
OPEN_SECONDS_MAX = 20
ELEMENTS_MAX = 4000
FOCUSED = "document.activeElement.getAttribute('aria-label')"
Open = Callable[..., Any]


def few() -> str:
    """Ten requests, one of which failed and was sent again, with waits of both kinds."""
    script = Script()
    for number in range(8):
        script.request("folder/k.parquet", number * MiB, (number + 1) * MiB, at=0.003 * number, lane="prefetch")
    script.request("folder/k.parquet", 0, 100, at=0.03, error="Throttled", message="slow down")
    script.retry("folder/k.parquet", at=0.05, wait=0.02)
    script.request("folder/k.parquet", 0, 100, at=0.07, attempt=2)
    script.read("folder/k.parquet", 0, MiB, at=0.09, waited=0.06)
    script.read("folder/k.parquet", MiB, MiB + 10, at=0.095, tier="memory", waited=0.0)
    script.add(0.06, "budget.waited", "folder/k.parquet", seconds=0.01, lane="prefetch")
    return page_of(script.recording(), title="", written_at=dt.datetime(2026, 11, 23, tzinfo=dt.UTC))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages by name."""
    folder = tmp_path_factory.mktemp("pages")
    recording = busy_recording(REQUESTS, at_once=32)
    many = page_of(recording, title="", written_at=dt.datetime(2026, 11, 23, tzinfo=dt.UTC))
    texts = {"few": few(), "many": many}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for the module."""
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Open]:
    """Opens a page by name. It must ask for nothing and complain of nothing."""
    contexts, asked, complaints = [], [], []

    def open_page(name: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(pages[name].as_uri(), timeout=1000 * OPEN_SECONDS_MAX)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def violations(page: Any) -> list[str]:
    """What axe finds, by rule and element."""
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{rule['id']}: {[node['html'][:200] for node in rule['nodes'][:3]]}" for rule in found]


@pytest.mark.parametrize(
    ("name", "scheme", "width"), [("few", "light", 1280), ("few", "dark", 390), ("many", "dark", 1280)]
)
def test_axe_finds_nothing(name: str, scheme: str, width: int, opened: Open) -> None:
    page = opened(name, color_scheme=scheme, viewport={"width": width, "height": 900})
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_bar_has_a_focus_stop_and_a_text(opened: Open) -> None:
    """By the arrow keys, from the one that Tab reaches."""
    page = opened("few")
    page.focus("#whole")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED).startswith(
        "a read of folder/k.parquet waited 60 ms, for bytes 0 to 1,048,576 from store"
    )
    page.keyboard.press("Tab")
    texts = []
    for _ in range(10):
        texts.append(page.evaluate(FOCUSED))
        assert page.locator("#said").inner_text() == texts[-1]
        page.keyboard.press("ArrowDown")
    assert [text.split(",")[0] for text in texts] == [f"request {number}" for number in range(1, 11)]
    assert "read folder/k.parquet, bytes 0 to 1,048,576, prefetch, began at 0 µs, first byte after 10 ms" in texts[0]
    assert "received 1 MiB, of which 1 MiB were not used" in texts[7]
    assert "failed: Throttled: slow down" in texts[8]
    assert "attempt 2, 20 ms after the failure before" in texts[9]
    page.keyboard.press("ArrowDown")
    assert page.evaluate(FOCUSED) == texts[9]
    page.keyboard.press("Home")
    assert page.evaluate(FOCUSED) == texts[0]
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED).endswith("1 request waited for memory")


def test_ten_thousand_bars_are_reached_by_keyboard(opened: Open) -> None:
    """Few of them are in the document at a time, the one in focus always."""
    page = opened("many")
    assert page.evaluate("document.querySelectorAll('*').length") < ELEMENTS_MAX
    first = page.locator("#rows [tabindex='0']")
    count = int(first.get_attribute("aria-setsize"))
    assert count > REQUESTS
    first.focus()
    for key, position in (("ArrowDown", 2), ("PageDown", 17), ("End", count), ("ArrowUp", count - 1), ("PageUp", None)):
        page.keyboard.press(key)
        label, place = page.evaluate(f"[{FOCUSED}, +document.activeElement.getAttribute('aria-posinset')]")
        assert label.startswith(f"request {place},")
        assert position in (place, None)
    page.evaluate("document.querySelector('.rows').scrollTop = 0")
    page.wait_for_selector(
        "#rows [aria-posinset='1']", state="attached"
    )  # The page lets no text be evaluated by itself.
    assert page.locator("#rows [tabindex='0']").get_attribute("aria-posinset") == str(count - 16)
    assert page.evaluate("document.querySelectorAll('*').length") < ELEMENTS_MAX


def test_what_is_shown_can_be_chosen(opened: Open) -> None:
    """By lane, by order, and by a window of time."""
    page = opened("many")
    bars = "+document.querySelector('#rows [role=option]').getAttribute('aria-setsize')"
    whole = page.evaluate(bars)
    page.select_option("#show", "failed")
    assert page.evaluate(bars) < whole / 5
    assert page.locator("#shown").inner_text() == f"{page.evaluate(bars):,} bars of {whole:,}"
    page.select_option("#show", "all")
    page.select_option("#order", "unused")
    assert "were not used" in page.locator("#rows [aria-posinset='1']").get_attribute("aria-label")
    page.locator("#rows [tabindex='0']").focus()
    for _ in range(4):
        page.keyboard.press("+")
    assert page.evaluate(bars) < whole / 4
    page.keyboard.press("0")
    assert page.evaluate(bars) == whole
    box = page.locator("#flight").bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20, steps=3)
    page.mouse.up()
    assert 0.2 * whole < page.evaluate(bars) < 0.3 * whole


def test_a_filter_that_shows_nothing_says_so_until_it_is_taken_back(opened: Open) -> None:
    page = opened("few")
    page.locator("#rows [tabindex='0']").focus()
    for _ in range(3):
        page.keyboard.press("+")
    page.select_option("#show", "failed")
    assert page.locator("#said").inner_text() == "No request is shown"
    page.select_option("#show", "all")
    assert page.locator("#said").inner_text().startswith("request 1,")


def test_without_scripts_the_figures_are_there(opened: Open) -> None:
    page = opened("few", java_script_enabled=False)
    assert page.locator("h1").inner_text() == "10\u00a0requests, 8\u00a0MiB, 95\u00a0ms"
    assert "Slowest requests" in page.locator("table caption").all_inner_texts()
    assert "need JavaScript" in page.locator("#said").inner_text()
