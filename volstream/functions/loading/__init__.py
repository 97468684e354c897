"""Files as rows: csv, json and parquet files read in batches, fitted to a table's columns. Runs on
executors."""
