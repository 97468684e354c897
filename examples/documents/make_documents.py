"""Writes the PDFs of a small shop: ``python make_documents.py data/documents [--new-terms]``."""

from __future__ import annotations

import sys
from pathlib import Path

from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate

RETURNS = "You can return any article within {days} days of its delivery. Keep the receipt, because we ask for it."
DOCUMENTS = {
    "terms.pdf": [
        "Prices include value added tax. Orders are binding once we have confirmed them by mail.",
        RETURNS,
        "We repair articles that break within two years. Batteries wear out and are not covered.",
    ],
    "delivery.pdf": [
        "Parcels leave our warehouse on the day of the order if it arrives before noon.",
        "Delivery to islands takes three days longer. Furniture is brought by two people, by appointment.",
    ],
    "bicycles.pdf": [
        "Check the brakes before each ride. Oil the chain once a month, and after rain.",
        "The battery charges in four hours. Store it indoors in winter, half full.",
    ],
}


def write(path: Path, pages: list[str]) -> None:
    """Writes a PDF with a paragraph on each page."""
    style = getSampleStyleSheet()["BodyText"]
    story = [part for page in pages for part in (Paragraph(page, style), PageBreak())]
    SimpleDocTemplate(str(path)).build(story)


def main() -> None:
    folder, days = Path(sys.argv[1]), 60 if "--new-terms" in sys.argv else 30
    folder.mkdir(parents=True, exist_ok=True)
    for name, pages in DOCUMENTS.items():
        if name == "terms.pdf" or days == 30:
            write(folder / name, [page.format(days=days) for page in pages])


if __name__ == "__main__":
    main()
