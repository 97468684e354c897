"""The daemon: keeps directory tables true, runs jobs when they are due, and tells how it is over HTTP."""
