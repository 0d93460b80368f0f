"""Random calls of every op against formulas that are not its body: ``python -m tests.fuzz``."""
