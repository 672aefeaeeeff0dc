"""Several layers in one worker: forwards first, hand on, then the backwards."""


def work_parts(layers, inbox, outbox):
    while (item := inbox.get()) is not None:
        for each in layers:
            item = each(*item)
        if outbox is not None:
            outbox.put(item)
        for each in layers:
            each.backward_and_update()
    if outbox is not None:
        outbox.put(None)


halves = network()
two_workers(halves, batches)
assert equal(halves, trained["in turn"])
print("two workers: equal bit for bit")
