"""How many requests, in which ranges, into which buffer."""
