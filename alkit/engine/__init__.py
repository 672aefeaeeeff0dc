"""Runs a schedule: on one thread, on a thread a worker, on a process a worker.

run, stage             one thread (the oracle of the others) or threads; a block under backprop
ranks, messages        a process a worker; what ranks say to each other
launch, caller         processes: started, watched, none left behind; the caller's thread state
loop, trainer, checkpoint, evaluate, callbacks, rates      the one loop over epochs
device, modes, random, optimizers, losses                  what stages and loops are made with
costs, compiled        seconds of blocks, measured; forward and backward as one call
"""
