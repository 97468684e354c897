"""``docs``: the pages of the documentation, which come with the package."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import click

import volstream
from volstream.base.model.text import nearest
from volstream.cli.output import Output
from volstream.errors import NotFoundError


@click.command("docs")
@click.argument("page", required=False)
def docs_command(page: str | None) -> None:
    """Show a PAGE of the documentation, or list the pages: volstream docs tutorial."""
    pages = _pages()
    if page is None:
        Output(as_json=False).table(
            [{"page": name, "about": _title(path)} for name, path in pages.items()], ["page", "about"], ""
        )
        return
    name = page if page in pages else next((known for known in pages if known.endswith(f"/{page}")), None)
    if name is None:
        raise NotFoundError(f"There is no page {page!r}.", nearest(page, list(pages)))
    text = pages[name].read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        Output(as_json=False).result(None, text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(text, hyperlinks=False), width=min(100, console.width))


def _pages() -> dict[str, Path]:
    """Returns the pages by name: of the checkout, or as they were installed. Raises NotFoundError."""
    folder = Path(volstream.__file__).parents[1] / "docs"
    if not (folder / "index.md").is_file():
        try:
            installed = [Path(file.locate()) for file in files("volstream") or () if file.parts[-3:-1] == ("doc", "volstream")]
        except PackageNotFoundError:
            installed = []
        folder = next((path.parent for path in installed if path.name == "index.md"), folder)
    found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}
    if not found:
        raise NotFoundError("The documentation was not installed with volstream.", "Read it in the source distribution.")
    return {"tutorial": found.pop("tutorial"), **{name: path for name, path in found.items() if name != "index"}}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next(line for line in lines if line.startswith("# ")).removeprefix("# ").strip()
