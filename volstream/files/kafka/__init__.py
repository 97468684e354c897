"""Kafka topics, as sources and queues have them: where they are, and the client that reads them."""
