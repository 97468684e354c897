"""A headless browser for tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.waiting import eventually


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser; skips where Chromium is not installed, but not in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        reason = "Chromium is not installed (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    # Its sandbox refuses to run as root, as in containers. It sees our own pages only.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


def visit(page: Page, url: str) -> None:
    """Opens a page, and returns once it has been seen: until then, the browser drops clicks."""
    page.goto(url)
    wait_for(page, "performance.getEntriesByName('first-contentful-paint').length > 0")


def wait_for(page: Page, expression: str) -> None:
    """Returns once an expression is true on a page. If it is not so at once, Playwright's own way would evaluate it on the page,
    whose policy forbids that."""
    eventually(lambda: page.evaluate(expression))
