"""The client of Spark: connections, sessions, errors, frames."""
