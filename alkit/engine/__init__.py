"""Runs a schedule: on one thread, on a thread a worker, on a process a worker.

run                         one thread (the oracle of the others), and threads, with owners or free
ranks, messages             a process a worker; what travels, and what ranks say beside it
launch, caller              processes: started, watched, none left behind; the caller's thread state
stage, steps                a block under backprop as a stage; what stands around an update
loop, plan, trainer, callbacks, evaluate, checkpoint    the one loop over epochs
device, modes, random, optimizers, rates, reduction     what stages and loops are made with
costs, compiled             seconds and bytes, measured; forward and backward as one call
"""
