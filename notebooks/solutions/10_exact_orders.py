"""(K - 1) / (M + K - 1) below 5 %: M above 19 (K - 1)."""

guess = 19 * (workers - 1) + 1
idle = (workers - 1) / (guess + workers - 1)
print(f"{guess} micro-batches: {idle:.1%} idle")
assert idle < 0.05 <= (workers - 1) / (guess - 1 + workers - 1)
