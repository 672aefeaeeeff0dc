"""What runs leave behind, and the command that starts them.

parameters, strict      what a notebook takes; files read strictly
runs, batch             presets and sweeps; many runs at once
execution, reaper       one run in a process of its own, and its end
recording, rows, origin what a run records, and where it was made
tables                  the committed tables
results, published/     frames of our runs, numbers of the publications
comparisons             differences with the seed as the unit
fit, methods            one call for every method
cli, cli_split          the command line
"""
