"""The operations on objects, one collection per kind; called by CLI, SQL and Python.

A collection resolves names, takes leases and calls the domain, which holds the rules. Names are text, as
users write them.
"""
