"""Queues of events, files and alerts in folders: a plug-in for volstream to copy."""
