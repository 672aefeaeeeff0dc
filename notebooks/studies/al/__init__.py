"""Associated learning: families, label sides, workers, baselines."""
