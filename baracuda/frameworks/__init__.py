"""What a framework needs beyond a plain call: one module each, loaded when it first does."""
