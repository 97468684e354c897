"""The console: pages for people and JSON for programs, served by the daemon over HTTP, with its probes and
metrics."""
