"""What notebooks need around the methods: it knows schedules' timelines, and no method.

parameters   what a notebook takes, and its presets
results      what a run records, and the committed tables
batch        runs and sweeps, by papermill
compare      differences with the seed as the unit
viz, setup   figures, and the first lines of every notebook
"""
