"""Pipelines as code: TOML files that say what a home has, compared with what is there, and applied.

The way of a file: ``read`` makes definitions of it, ``existing`` makes the same of a home, ``plan`` compares
the two, ``rehearse`` carries the plan out on a scratch home so that mistakes are found before anything
changes, ``apply`` carries it out. ``export`` goes the other way. Each rule for a value stays where commands
and SQL have it: definitions are made by the home's objects.
"""
