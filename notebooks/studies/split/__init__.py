"""Split learning: programs, links, tables."""
