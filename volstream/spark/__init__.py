"""Spark: the engine's JVM (Java, jars, command, start) and the client side (connections, sessions, errors)."""
