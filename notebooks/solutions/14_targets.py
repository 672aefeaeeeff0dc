"""The sum of two squares ends in between."""


def both_by_hand(b):
    return l_drl_by_hand(b) + reconstruction_by_hand(b)


between = learned(both_by_hand)
print(between.numpy().round(3))
far = [float((between - end).norm()) for end in (transpose, inverse)]
assert min(far) > 0.1
assert max(far) < float((transpose - inverse).norm())
