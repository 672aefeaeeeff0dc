"""Both at once: no wait for the block above, and none for the update."""


def both(task):
    kind, device, batch = task
    return [("F", device, batch)] if kind == "B" else old_weights(task)


print(f"busy for {busy(simulate(both)):.0%} of the time")
# The forward wait is left, so fill and drain are. A block that trains alone has its new weights
# before its next input comes: old ones buy nothing any more.
assert busy(simulate(both)) == busy(simulate(own_loss))
