"""Draws a few pictures: ``python make_pictures.py data/originals``."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw

COLOURS = {"2025/red": "firebrick", "2025/green": "seagreen", "2026/blue": "steelblue", "2026/yellow": "goldenrod"}


def main() -> None:
    folder = Path(sys.argv[1])
    for number, (name, colour) in enumerate(COLOURS.items(), 1):
        image = Image.new("RGB", (200 * number, 300), colour)
        ImageDraw.Draw(image).ellipse((40, 40, 160, 160), fill="white")
        target = folder / f"{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(target)


if __name__ == "__main__":
    main()
