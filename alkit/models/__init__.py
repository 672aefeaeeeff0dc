"""Networks as lists of blocks: what every method trains and every schedule cuts."""
