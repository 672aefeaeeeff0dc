"""Checks on a simulated accelerator, run by `tests/unit/test_sim.py` in a process of their own."""
