"""The daemon and its console."""
