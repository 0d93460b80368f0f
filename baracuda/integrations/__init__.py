"""Other libraries' models, computed by the ops; each integration is imported by its own name."""
