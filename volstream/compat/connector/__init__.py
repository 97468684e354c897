"""Import paths of hosted platforms' connectors, for programs that were written for one."""
