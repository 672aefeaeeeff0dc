"""Runs a schedule: on one thread, on a thread a worker, on a process a worker."""
