"""SQL statements: finding the names in them, making tables and streams visible to Spark, running them."""
