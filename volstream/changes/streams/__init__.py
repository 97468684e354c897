"""Streams: cursors over the versions of a directory or table, the rows they return, and their exactly-once offsets."""
