"""Kafka topics that fill tables: definitions, the client, messages as rows, and the reading itself."""
