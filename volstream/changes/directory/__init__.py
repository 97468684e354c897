"""Directory tables: one Delta row per file of a volume, kept up to date by one writer per volume."""
