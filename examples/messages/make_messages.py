"""Writes messages of customers into a folder."""

import itertools
import sys
from pathlib import Path

NAMES = ("Ada", "Bo", "Chris", "Dana", "Eli", "Fay", "Gus", "Hal", "Ida", "Jo")
TEXTS = (
    "My parcel has not arrived yet.",
    "The lamp came broken! I want a refund!",
    "Please send me an invoice for my last order.",
    "You are late again!",
    "Do you sell bicycles?",
    "Thank you, the new chair is lovely.",
)

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for number, (name, text) in enumerate(itertools.product(NAMES, TEXTS), start=1):
    (folder / f"{number:03}.txt").write_text(f"{text} {name}, customer {number}")
