"""Alerts: which problems of a home are sent, when, and how."""
