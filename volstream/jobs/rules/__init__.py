"""What jobs may be: their definitions, columns, conditions and targets, and the version of their code."""
