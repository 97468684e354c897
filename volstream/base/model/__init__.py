"""Frozen values shared by every layer: names, units, definitions, files, hints, batches. Nothing here does
I/O."""
