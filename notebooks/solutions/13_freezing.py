"""Not before half of training."""


def patient(moment):
    return cap(moment.layers, alpha, moment.evaluation) if moment.progress >= 0.5 else 0


network = network_for(task, width=width, patch=patch, seed=seed)
found = alkit.fit(network, task.train, **how | {"freeze": patient})
frozen = list(found.history.frozen)
print("frozen layers by epoch:", frozen)
assert frozen[0] == 0 < frozen[-1]
