"""What runs leave behind, and the command that starts them.

parameters              what a notebook takes, and its presets
batch                   runs and sweeps, by papermill
recording, rows, origin what a run records, and where it was made
tables                  the committed tables
results, published/     frames of our runs, numbers of the publications
comparisons             differences with the seed as the unit
fit, methods            one call for every method
cli, cli_split          the command line
"""
