"""What each page shows, as values: the one source of its HTML and its JSON."""
