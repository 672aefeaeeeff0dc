"""What runs leave behind, and the command that starts them.

results, published/     records of our runs, numbers of the publications
comparisons             differences with the seed as the unit
runs, execution         what is to be run, and one run in a process of its own
fit, methods            one call for every method
cli, cli_split          the command line
"""
