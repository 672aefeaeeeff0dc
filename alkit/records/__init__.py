"""What runs leave behind, and the command that starts them.

results, published/     records of our runs, numbers of the publications
study, comparisons, verdicts    cases of a family; differences with the seed as the unit
runs, sweeps            what is to be run, and one run in a process of its own
cli, cli_split          the command line
"""
