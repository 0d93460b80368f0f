"""Programs to read: models trained with baracuda alone."""
