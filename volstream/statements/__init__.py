"""Runs SQL with Spark: binds the names of the home; DML that reads streams consumes them."""
