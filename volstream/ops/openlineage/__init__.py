"""Run events for OpenLineage: what each batch of a job read and wrote."""
