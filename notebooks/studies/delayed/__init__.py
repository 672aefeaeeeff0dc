"""Delayed gradients: accuracy, times, memory, planners."""
