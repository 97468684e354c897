"""Runs SQL with Spark: binds the home's names; DML that reads streams consumes them."""
