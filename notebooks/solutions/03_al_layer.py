"""The cosine distance as associated loss."""

torch.manual_seed(seed)
asks = ENC(copy.deepcopy(f), copy.deepcopy(b), lambda m, t: 1 - F.cosine_similarity(m, t).mean())
own = AL(asks, AE(copy.deepcopy(g), copy.deepcopy(h), F.cross_entropy), lr=lr)
own(x, y)
print(f"associated loss {own.loss()[0]:.3f}")
expected = 1 - F.cosine_similarity(b(f(x)), g(y)).mean().item()
assert abs(own.loss()[0] - expected) < 1e-6
