"""Connections and volumes: their rules, and access to their stores and queues."""
