"""Networks as lists of blocks, which every method trains and every schedule cuts."""
