"""Changelogs: the raw changes of a table over a range of versions, and what readers make of them."""
