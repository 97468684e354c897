"""Directories of files, and streams of the changes of directories and tables."""
