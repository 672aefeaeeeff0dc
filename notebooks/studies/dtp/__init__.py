"""Target propagation: runs, tables, rules beside it."""
