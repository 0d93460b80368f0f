"""The command line: one module per ``python -m baracuda`` command."""
