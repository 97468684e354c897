"""Looking into a home: what is wrong with it, what happened to a file, all about an object."""
