"""The providers of buckets: a folder each beside this file, or a package of its own."""
