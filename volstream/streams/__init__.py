"""Streams: cursors over the versions of a directory table; what they return, and how their offsets move exactly once."""
