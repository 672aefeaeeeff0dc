"""Delayed gradients: accuracy, corrections, orders."""
