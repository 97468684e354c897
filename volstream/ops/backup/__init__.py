"""Backups of a home, taken during normal operation, and their restoration."""
