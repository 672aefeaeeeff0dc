"""Runs a schedule: on one thread, on a thread a worker, on a process a worker.

run         one thread (the oracle of the others), and threads, with owners or free
ranks       a process a worker; messages: what travels between them
group       what ranks say to each other beside the schedule
launch      processes: started, watched, none left behind
caller      the caller's thread-local state, for workers
stage       a block under backprop as a stage
loop, trainer, request, record, evaluate    the one loop over epochs, what it is given and leaves
device, random, optimizers, rates, checkpoint   what stages and loops are made with
profile, ledger     seconds and bytes, measured
"""
