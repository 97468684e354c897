"""What a run will do: the files of a stream's range, cut into batches."""
