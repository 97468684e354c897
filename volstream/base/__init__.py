"""What everything stands on: values and their rules, settings, logs, processes."""
