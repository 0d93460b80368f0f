"""What families of ops share: arithmetic, sums, norms and losses."""
