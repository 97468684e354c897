"""Changelogs: the raw changes of a table over a range of versions, and their processing for readers."""
