"""Module k of K is K - 1 - k updates late."""

guess = 6 - 1 - 1
print(guess, "against", staleness("pipedream", 6, 20).forward[1])
assert guess == staleness("pipedream", 6, 20).forward[1]
