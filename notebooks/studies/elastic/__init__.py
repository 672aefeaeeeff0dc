"""Elastic training: tasks, rivals, cost on other machines."""
