"""Running SQL with Spark: the names of the home are bound, and DML that reads streams consumes them."""
