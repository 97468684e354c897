"""Alerts: what in a home people are told of, when, and how."""
