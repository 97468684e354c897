"""Inspection of a home: its problems, the history of a file, all details of an object."""
