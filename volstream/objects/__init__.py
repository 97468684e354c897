"""The operations on objects, one collection per kind: what CLI, SQL and Python all call.

A collection resolves names, takes leases and calls the domain; rules are the domain's. Names are text, as users write them.
"""
