"""Jobs: plans, batches, attempts and results of what runs on streams; their definitions and schedules."""
