"""Elastic training: tasks, recipe, rivals, ablation."""
