"""Users' functions: finding them, and calling them file by file, on executors."""
