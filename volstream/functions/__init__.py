"""Users' functions: finds them, and calls them file by file, on executors."""
