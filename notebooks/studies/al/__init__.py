"""Associated learning: families, label sides, workers."""
