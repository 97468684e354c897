"""Stopping, backing off, identity of processes, and fault points: what every long-running part shares."""
