"""Split learning: programs, links, lanes, leaks."""
