"""The daemon: keeps directory tables up to date, runs jobs when they are due, and reports its state over
HTTP."""
