"""Volumes, the stores that have their files, and the queues that tell of them."""
