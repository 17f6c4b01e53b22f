"""The Beam transforms from encoded batch to committed segment, and what drives them."""
