"""Frozen values that every layer shares: names, units, definitions, files, hints, batches. Nothing here does I/O."""
