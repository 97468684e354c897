"""The console in a real browser, against one daemon with real data: pages, accessibility, actions, news without a reload."""

from __future__ import annotations

import os
import random
import re
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser import browser, visit, wait_for
from tests.e2e.homes import Daemon, Home, patiently, write

__all__ = ["browser"]

_FUNCTIONS = """
import struct
from dataclasses import dataclass


@dataclass
class Picture:
    width: int
    height: int


def measure(file) -> Picture:
    content = file.read_bytes()
    print("measuring", len(content), "bytes")
    if not content.startswith(b"\\x89PNG"):
        raise ValueError(f"{file.relative_path!r} is not a picture: it begins with {content[:6]!r}")
    width, height = struct.unpack(">II", content[16:24])
    if width > 90:
        raise OverflowError(f"{width} pixels are more than 90")
    return Picture(width, height)


@dataclass
class Words:
    words: int


def count(file) -> Words:
    return Words(len(file.read_text().split()))
"""

HOSTILE = ["<img src=x onerror=alert(1)>.txt", "${x}.txt", "\x1b[31mred.txt", "\u202egnp.exe", "long-" + "x" * 220]

#: Pages whose path needs no batch.
PAGES = [
    "/",
    "/volumes/photos",
    "/volumes/photos?prefix=2026/march/",
    "/volumes/letters/files?path=" + quote(HOSTILE[0]),
    "/jobs/sizes",
    "/jobs/sizes/batches",
    "/jobs/sizes/batches/{batch}",
    "/jobs/sizes/failures",
    "/jobs/sizes/logs",
    "/tables",
    "/tables/sizes",
    "/sql",
    "/settings",
    "/doctor",
    "/tasks",
    "/audit",
    "/graph",
    "/failures",
    "/?search=size",
    "/nowhere",
]

#: Those that a short run looks at: the ones that are built most differently.
_LOOKED_AT = ("/", "/volumes/photos", "/jobs/sizes", "/jobs/sizes/failures", "/tables/sizes", "/sql", "/graph")

WIDTHS, SCHEMES = (360, 768, 1280), ("light", "dark")

#: Rules of WCAG 2.2 A and AA, and what axe calls best practice.
_AXE = {"resultTypes": ["violations"]}


#: True once each chart of a page has painted its canvas: the scripts that do so come after the page.
_PAINTED = """() => [...document.querySelectorAll("[data-chart]")].every((chart) => {
    const canvas = chart.querySelector("canvas");
    const pixels = canvas?.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels?.some((value) => value > 0);
})"""


class Site:
    """The console of a daemon, open in a browser."""

    def __init__(self, home: Home, daemon: Daemon) -> None:
        self.home = home
        self.daemon = daemon
        self.folder = home.folder / "photos"
        self.url = home.ok("console", "--print").strip()
        self.base = self.url.partition("/?")[0]
        self.batch = home.json("list", "batches", "--job", "sizes")[-1]["id"]

    def path(self, path: str) -> str:
        return f"{self.base}{path.format(batch=self.batch)}" if "{batch}" in path else f"{self.base}{path}"


@contextmanager
def opened(site: Site, browser: Browser, width: int = 1280, scheme: str = "light", *, tolerated: str = "404") -> Iterator[Page]:
    """A page that has logged in; errors in its console fail the test, but for those with a text."""
    wrong: list[str] = []
    made = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]  # one of two words
    made.set_default_timeout(20_000)
    page = made.new_page()
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(site.url)
    yield page
    made.close()
    assert [text for text in wrong if tolerated not in text] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = Home(tmp_path_factory.mktemp("console"), variables={"VOLSTREAM_RETRY_FIRST_SECONDS": "1h", "BROWSER": "true %s"})
    (home.folder / "functions.py").write_text(_FUNCTIONS, encoding="utf-8")
    fill(home.folder / "photos", home.folder / "letters")
    home.ok("create-volume", "photos", str(home.folder / "photos"))
    home.ok("create-volume", "letters", str(home.folder / "letters"), "--queue-type", "poll")
    sizes = ("--volume", "photos", "--function", "functions.py:measure", "--into", "sizes", "--retries", "0")
    home.ok("create-job", "sizes", *sizes, "--on-change", "--max-files", "12")
    words = ("--volume", "letters", "--function", "functions.py:count", "--into", "words")
    home.ok("create-job", "words", *words, "--every", "1h")
    with home.daemon() as daemon:
        patiently(lambda: (daemon.metric("volstream_job_batches_total", job_name="sizes") or 0) >= 5)
        patiently(lambda: daemon.metric("volstream_job_waiting_files", job_name="sizes") == 0)
        yield Site(home, daemon)


def fill(photos: Path, letters: Path) -> None:
    """Writes files as people have them, and as attackers name them."""
    chosen = random.Random(1)
    for number in range(60):
        folder = photos / "2026" / chosen.choice(["january", "february", "march"])
        folder.mkdir(parents=True, exist_ok=True)
        width = chosen.choice([24, 32, 48, 64, 95])
        content = picture(width, chosen.randbytes(3)) if number % 11 else b"GIFTED"
        (folder / f"IMG_{4000 + number}.png").write_bytes(content)
    letters.mkdir()
    for name in [*HOSTILE, *(f"letter-{number}.txt" for number in range(8))]:
        (letters / name).write_text("dear reader", encoding="utf-8")


def picture(width: int, color: bytes) -> bytes:
    """A PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + color * width) * (width // 2)
    head = struct.pack(">IIBBBBB", width, width // 2, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def check(page: Page, name: str) -> None:
    """Nothing sticks out of the window, and axe finds nothing."""
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{name} is wider than the window"
    found = Axe().run(page, options=_AXE)
    assert found.violations_count == 0, f"{name}\n{found.generate_report()}"


@pytest.mark.parametrize(
    ("width", "scheme", "pages"),
    [
        pytest.param(360, "light", _LOOKED_AT, id="360-light-some"),
        *(pytest.param(*one, PAGES, marks=pytest.mark.long, id=f"{one[0]}-{one[1]}") for one in product(WIDTHS, SCHEMES)),
    ],
)
def test_each_page_fits_and_is_accessible(site: Site, browser: Browser, width: int, scheme: str, pages: Sequence[str]) -> None:
    with opened(site, browser, width, scheme) as page:
        for path in pages:
            visit(page, site.path(path))
            expect(page.locator("h1")).to_have_count(1)
            if path == "/jobs/sizes":
                wait_for(page, _PAINTED)
            check(page, path)


@pytest.mark.long
def test_the_lineage_fits_into_the_window(site: Site, browser: Browser) -> None:
    with opened(site, browser, 800) as page:
        visit(page, site.path("/graph"))
        natural = page.evaluate("document.querySelector('.lineage svg').viewBox.baseVal.width")
        assert natural > 800, "it would not fit by itself"
        assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('.lineage'))") <= 0


@pytest.mark.long
def test_the_lineage_is_zoomed_moved_and_saved(site: Site, browser: Browser) -> None:
    with opened(site, browser) as page:
        visit(page, site.path("/graph"))
        svg = page.locator(".lineage svg")
        whole = svg.get_attribute("viewBox")
        assert whole is not None
        page.get_by_role("button", name="Zoom in").click()
        expect(svg).not_to_have_attribute("viewBox", whole)  # what a click does comes after it
        near = svg.get_attribute("viewBox") or ""
        closer = [float(number) for number in near.split()]
        assert closer[2] == pytest.approx(0.7 * float(whole.split()[2]))
        box = svg.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        page.mouse.down()
        page.mouse.move(box["x"] + 45, box["y"] + 5)
        page.mouse.up()
        expect(svg).not_to_have_attribute("viewBox", near)
        assert float((svg.get_attribute("viewBox") or "").split()[0]) < closer[0]
        page.get_by_role("button", name="Show all").click()
        expect(svg).to_have_attribute("viewBox", whole)
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save as SVG").click()
        picture = ElementTree.parse(saved.value.path()).getroot()
        assert (picture.tag, picture.get("viewBox")) == ("{http://www.w3.org/2000/svg}svg", whole)


def test_tables_are_sorted_by_a_click_and_by_the_keyboard(site: Site, browser: Browser) -> None:
    with opened(site, browser) as page:
        visit(page, site.path("/"))
        table = page.get_by_role("group", name="Volumes")
        names = table.locator("tbody th > a")
        table.get_by_role("columnheader", name="Files").click()
        expect(names).to_have_text(["photos", "letters"])
        assert table.get_by_role("columnheader", name="Files").get_attribute("aria-sort") == "descending"
        table.get_by_role("columnheader", name="Volume").press("Enter")
        expect(names).to_have_text(["letters", "photos"])
        table.get_by_role("columnheader", name="Size").click()
        expect(names).to_have_text(["photos", "letters"])
        table.get_by_role("columnheader", name="Size").click()
        expect(names).to_have_text(["letters", "photos"])


@pytest.mark.long
def test_the_reader_chooses_light_or_dark_for_all_pages(site: Site, browser: Browser) -> None:
    with opened(site, browser) as page:
        visit(page, site.path("/jobs/sizes"))
        background, body = "getComputedStyle(document.body).backgroundColor", page.locator("body")
        light = page.evaluate(background)
        page.get_by_role("button", name="Switch to dark colours").click()
        expect(body).not_to_have_css("background-color", light)
        dark = page.evaluate(background)
        wait_for(page, _PAINTED)
        visit(page, site.path("/"))
        expect(body).to_have_css("background-color", dark)
        page.get_by_role("button", name="Switch to light colours").click()
        expect(body).to_have_css("background-color", light)


def test_pages_read_without_scripts(site: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.url)
    expect(page.get_by_role("link", name="sizes", exact=True).first).to_be_visible()
    page.goto(site.path("/jobs/sizes"))
    expect(page.locator("time").first).to_contain_text("UTC")
    context.close()


@pytest.mark.long
def test_without_the_token_a_page_says_how_to_open_it(site: Site, browser: Browser) -> None:
    page = browser.new_page()
    visit(page, site.path("/jobs/sizes"))
    expect(page.get_by_text("volstream console")).to_be_visible()
    check(page, "locked")
    page.close()


def test_a_link_from_another_site_opens_the_page_for_who_is_logged_in(site: Site, browser: Browser) -> None:
    with opened(site, browser, tolerated="401") as page:
        page.goto("about:blank")
        page.set_content(f'<a href="{site.path("/jobs/sizes")}">look</a>')
        page.get_by_role("link", name="look").click()
        expect(page.get_by_role("heading", name="sizes", exact=True)).to_be_visible()


def test_the_command_opens_the_console_by_a_page_that_leads_to_it(site: Site, browser: Browser) -> None:
    site.home.ok("console")
    page = browser.new_page()
    page.goto((site.home.path / "run" / "console.html").as_uri())
    expect(page.get_by_role("heading", name="Overview")).to_be_attached()
    page.close()


@pytest.mark.long
def test_hostile_names_stay_text(site: Site, browser: Browser) -> None:
    shown = ["<img src=x onerror=alert(1)>.txt", "${x}.txt", "\\x1b[31mred.txt", "\\u202egnp.exe", HOSTILE[-1]]
    with opened(site, browser) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        visit(page, site.path("/volumes/letters"))
        for text in shown:
            page.get_by_role("link", name=text, exact=True).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(text)
            assert page.locator("main img").count() == 0
            page.go_back()


def test_a_page_shows_news_without_a_reload_and_keeps_what_the_reader_opened(site: Site, browser: Browser) -> None:
    with opened(site, browser) as page:
        visit(page, site.path("/jobs/sizes"))
        page.evaluate("window.same = true")
        details = page.locator("details.more").first
        details.locator("summary").click()
        details.locator("summary").focus()
        newest = page.locator("tbody tr[data-key]").first
        before = newest.get_attribute("data-key")
        assert before
        (site.folder / "news.png").write_bytes(picture(24, b"abc"))
        expect(newest).not_to_have_attribute("data-key", before, timeout=30_000)
        assert page.evaluate("window.same"), "the page was not loaded again"
        assert details.get_attribute("open") is not None
        assert page.evaluate("document.activeElement.nodeName") == "SUMMARY"


#: Makes a page of one HTML text like that of another by our module; returns what it became, and what it should be.
_MORPH = """async ([one, other]) => {
    const { morph } = await import("/static/morph.js");
    const parsed = (text) => new DOMParser().parseFromString(`<main>${text}</main>`, "text/html").querySelector("main");
    const [from, to] = [parsed(one), parsed(other)];
    const wanted = to.innerHTML;
    morph(from, to);
    return [from.innerHTML, wanted];
}"""


def some_html(chosen: random.Random, depth: int = 0) -> str:
    """Named and nameless elements, and text between them, in any order."""
    parts: dict[object, str] = {}
    for number in range(chosen.randrange(5)):
        inside = some_html(chosen, depth + 1) if depth < 3 else chosen.choice("abc")
        name = f"k{chosen.randrange(6)}"
        kind = chosen.choice(["section", "p", "div", "text"])
        if kind == "section":
            parts[name] = f'<section aria-labelledby="{name}">{inside}</section>'
        elif kind == "text":
            parts[number] = "\n"
        else:
            parts[number] = f'<{kind} class="{name}">{inside if kind == "div" else name}</{kind}>'
    return "".join(parts.values())


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_any_page_becomes_any_other_in_place(site: Site, browser: Browser, count: int) -> None:
    chosen = random.Random(1)
    with opened(site, browser) as page:
        for _ in range(count):
            became, wanted = page.evaluate(_MORPH, [some_html(chosen), some_html(chosen)])
            assert became == wanted


def test_what_the_reader_has_written_and_chosen_stays(site: Site, browser: Browser) -> None:
    with opened(site, browser) as page:
        visit(page, site.path("/sql"))
        became = page.evaluate("""async () => {
            const { morph } = await import("/static/morph.js");
            const parts = (search, hidden, rows) =>
                `<input type="search" value="${search}"><input type="hidden" value="${hidden}">` +
                `<select><option selected>a</option><option>b</option>${rows}</select><textarea>${search}</textarea>`;
            const parsed = (...given) =>
                new DOMParser().parseFromString(`<main>${parts(...given)}</main>`, "text/html").querySelector("main");
            const main = document.importNode(parsed("", "1", ""), true);
            document.querySelector("main").replaceWith(main);
            main.querySelector("[type=search]").value = main.querySelector("textarea").value = "typed";
            main.querySelector("select").value = "b";
            morph(main, parsed("", "2", "<option>c</option>"));
            return [...main.querySelectorAll("input, select, textarea")].map((one) => one.value)
                .concat(main.querySelectorAll("option").length);
        }""")
    assert became == ["typed", "2", "b", "typed", 3]


def test_failures_are_retried_and_skipped_from_the_page(site: Site, browser: Browser) -> None:
    with opened(site, browser) as page:
        visit(page, site.path("/jobs/sizes/failures"))
        page.locator("article").first.get_by_role("button", name="Skip").click()
        expect(page.get_by_text("1 file skipped.")).to_be_visible()
        expect(page.locator("article .state").first).to_contain_text("Skipped")
        visit(page, site.path("/jobs/sizes"))
        group = page.locator("article.group").first
        group.get_by_role("button", name="Retry").click()
        expect(page.get_by_text(re.compile(r"\d+ files? due again"))).to_be_visible()
        visit(page, site.path("/jobs/sizes/failures"))
        page.get_by_role("button", name=re.compile("Skip .* files")).click()
        expect(page.get_by_text(re.compile(r"\d+ files skipped"))).to_be_visible()
        visit(page, site.path("/audit"))
        expect(page.get_by_role("row", name=re.compile("retry job sizes")).first).to_be_visible()


def test_a_job_is_paused_and_resumed_and_a_volume_refreshed_from_the_page(site: Site, browser: Browser) -> None:
    with opened(site, browser, 360) as page:
        visit(page, site.path("/jobs/words"))
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("h1 + .state")).to_have_text(re.compile("Paused"))
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        write(site.home.folder / "letters", {"late.txt": "dear reader"})
        visit(page, site.path("/volumes/letters"))
        page.get_by_role("button", name="Refresh now").click()
        expect(page.get_by_role("link", name="late.txt")).to_be_visible(timeout=30_000)


def test_a_query_runs_by_the_keyboard(site: Site, browser: Browser) -> None:
    site.daemon.await_engine()
    with opened(site, browser) as page:
        visit(page, site.path("/sql"))
        page.get_by_label("One query").fill("SELECT count(*) AS pictures FROM sizes")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("columnheader", name="pictures")).to_be_visible(timeout=60_000)
        page.get_by_label("One query").fill("DROP TABLE sizes")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_contain_text("DROP is not a query")


#: Shows the folder of the test under another name.
_NAMELESS = """folder => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) walker.currentNode.data = walker.currentNode.data.replaceAll(folder, "/data");
}"""


def trickle(photos: Path, seconds: float) -> None:
    """Lets pictures come as people take them, so that the timeline has something to show."""
    chosen, ends = random.Random(2), time.monotonic() + seconds
    while time.monotonic() < ends:
        for number in range(chosen.choice([1, 2, 5, 30])):
            content = picture(chosen.choice([24, 32, 48, 64, 95]), chosen.randbytes(3))
            hidden = photos / ".picture"
            hidden.write_bytes(content)
            hidden.rename(photos / "2026" / "march" / f"IMG_{time.monotonic_ns()}_{number}.png")
        time.sleep(chosen.choice([3, 8, 25]))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_screenshots(site: Site, browser: Browser, tmp_path: Path) -> None:
    """Writes those of the README to the folder that ``make screenshots`` names."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    painted: dict[str, int] = {}
    if "SCREENSHOTS" in os.environ:
        trickle(site.folder, 240)
    for scheme in SCHEMES:
        with opened(site, browser, 1280, scheme) as page:
            for name, path in (("overview", "/"), ("job", "/jobs/sizes")):
                visit(page, site.path(path))
                page.wait_for_load_state("load")
                expect(page.locator(".live.on")).to_be_visible()
                wait_for(page, _PAINTED)
                page.evaluate(_NAMELESS, str(site.home.folder))
                page.screenshot(path=folder / f"console-{name}-{scheme}.png")
                painted[name] = page.locator("canvas").count()
    assert len([*folder.glob("console-*.png")]) == 4
    assert painted == {"overview": 0, "job": 3}
