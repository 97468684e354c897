"""For all long-running parts: stopping, backing off, process identity, and fault points."""
