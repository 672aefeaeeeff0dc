"""Networks as lists of blocks: the same list for backprop and for every method."""
