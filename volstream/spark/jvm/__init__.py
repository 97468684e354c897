"""The JVM of an engine: its jars, its command line, its process, its log. No Spark session."""
