"""Jobs consume streams: their definitions, schedules, plans, batches, attempts and results."""
