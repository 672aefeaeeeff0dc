"""Who does what, after what: schedules as data, and all that follows from them without a tensor.

task        `Task`, `Schedule`, and the schedules of associated learning
flushed     schedules that empty the pipeline after every batch: GPipe, 1F1B, zero bubble
torch_orders  the same with several stages a worker, and files, as torch has them
targets     the schedule of target propagation
validate    what holds for every interleaving: no deadlock, no race, staleness, queue lengths
locks       which waits of backprop a schedule removes
clock       the same schedules in virtual time
timeline    intervals, measured or simulated: idle time, throughput, bytes
"""
