"""What carries a call: the op, the check of its arguments, the plan, the caches, the gradient."""
