"""What declares an op: its arrays, options, values and choices, and the check of all of them."""
