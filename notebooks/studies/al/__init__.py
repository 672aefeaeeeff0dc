"""Associated learning: families, networks, exits, label sides."""
