"""Directory tables: one Delta row per file of a volume, kept true by one writer per volume."""
