"""Jobs: a Python function run on every file that a stream delivers, into a result table."""
