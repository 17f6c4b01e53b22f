"""Symbols: what an op is and what it costs, from the op tables agents ship. Joined late; no event waits for them."""
