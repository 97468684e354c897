"""volstream: run a Python function on every new or changed file of a bucket or directory, exactly once."""
