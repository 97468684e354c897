"""Copies the pictures of scikit-image, and near-duplicates of two: ``python make_pictures.py data/pictures``."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageEnhance

NAMES = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "horse.png", "rocket.jpg")


def main() -> None:
    package, folder = find_spec("skimage"), Path(sys.argv[1])
    if package is None or package.origin is None:
        sys.exit("scikit-image is not installed: pip install 'volstream[examples]'")
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        shutil.copyfile(Path(package.origin).parent / "data" / name, folder / name)
    with Image.open(folder / "chelsea.png") as image:
        image.resize((150, 100)).save(folder / "chelsea-small.jpg")
    with Image.open(folder / "coffee.png") as image:
        ImageEnhance.Brightness(image).enhance(1.3).save(folder / "coffee-bright.jpg")


if __name__ == "__main__":
    main()
