"""What a user has set on a network, its labels and its rates holds in every method."""

import pytest
import torch
from torch import nn

import alkit
from tests.conformance.families import FAMILIES

torch.manual_seed(0)
X = torch.randn(160, 8)
Y = X[:, :3].argmax(1)


def net(*inner):
    torch.manual_seed(0)
    first = [nn.Linear(8, 16), nn.Tanh(), *inner]
    return nn.Sequential(*first, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


def method(family):
    return family.method


@pytest.mark.parametrize("family", FAMILIES, ids=method)
def test_hooks_of_a_weight_run(family):
    """As of a mask that keeps a part of a layer as it is."""
    network, calls = net(), []
    before = network[0].weight.detach().clone()
    network[0].weight.register_hook(lambda grad: (calls.append(1), grad * 0)[1])
    if family.method == "pipelearn":
        with pytest.raises(ValueError, match=r"0\.weight has a hook, which copies of it have not"):
            family.fit(network, (X, Y))
        return
    family.fit(network, (X, Y), optimizer=sgd, lr=0.1)
    assert calls
    assert torch.equal(network[0].weight, before)


WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 1.0]))


@pytest.mark.parametrize("name", ["al_pipeline", "pipedream", "elastic"])
def test_hooks_of_a_weight_are_no_other_process_s(name):
    network = net()
    network[0].weight.register_hook(lambda grad: grad * 0)
    with pytest.raises(ValueError, match=r"0\.weight has a hook, which copies of it have not"):
        alkit.fit(network, (X, Y), method=name, ranks=2, progress=False)


@pytest.mark.parametrize(("loss", "label"), [(None, -100), (WEIGHTED, 0)], ids=["ignored", "light"])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero_bubble", "elastic"])
def test_a_part_of_a_batch_in_which_no_label_counts_adds_nothing(name, loss, label):
    labels = Y.clone()
    labels[:16] = label
    batches = [(X[at : at + 32], labels[at : at + 32]) for at in range(0, 160, 32)]
    options = {"loss": loss, "optimizer": sgd, "lr": 0.1, "progress": False}
    own = {"freeze": "none", "workers": 2} if name == "elastic" else {}
    record = alkit.fit(net(), batches, method=name, micro=2, **own, **options)
    assert record.losses.isfinite().all()
    if name in ("gpipe", "1f1b", "zero_bubble"):
        whole = alkit.fit(net(), batches, method="bp", **options)
        torch.testing.assert_close(
            [*record.model.state_dict().values()][0], [*whole.model.state_dict().values()][0]
        )


@pytest.mark.parametrize("name", ["dtp", "tp", "vanilla_dtp"])
@pytest.mark.parametrize("frozen", ["0", "0.bias", "2"])
def test_target_propagation_leaves_what_is_frozen(name, frozen):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    kept = network.get_parameter(frozen) if "." in frozen else network.get_submodule(frozen)
    kept.requires_grad_(requires_grad=False)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    alkit.fit(network, (X, Y), method=name, progress=False)
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]) == key.startswith(frozen)
