"""Both messages as float16."""


def halved(x, y, count):
    head, tail = (nn.Sequential(*copy.deepcopy(own)) for own in (units[:cut], units[cut:]))
    steps = [torch.optim.SGD(half.parameters(), lr=lr) for half in (head, tail)]
    for x_part, y_part in zip(x.chunk(count), y.chunk(count), strict=True):
        activations = head(x_part)
        received = activations.detach().half().float().requires_grad_()
        share = len(y_part) / len(y)
        (share * cross_entropy(tail(received), y_part)).backward()
        activations.backward(received.grad.half().float())
    for each in steps:
        each.step()
    return [*head.parameters(), *tail.parameters()]


both = iteration(x, y, 1), halved(x, y, 1)
moved = [torch.cat([p.detach().flatten() for p in own]) for own in both]
start = torch.cat([p.detach().flatten() for p in nn.Sequential(*units).parameters()])
off = float((moved[0] - moved[1]).norm() / (moved[0] - start).norm())
print(f"off by {off:.1e} of the step")
assert 0 < off < 0.01
