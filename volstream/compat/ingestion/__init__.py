"""Import paths of hosted platforms' ingestion clients, for programs that were written for one."""
