"""What a user has set on a network, its labels and its rates holds in every method."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

import alkit
from studies.delayed.corrections import GapAware, Predict
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


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.mark.parametrize(
    "own",
    [{}, *({"correction": each} for each in (Predict(), GapAware()))],
    ids=str,
)
def test_a_scheduler_moves_the_rates_that_a_correction_has(own):
    def moved(**options):
        network = net()
        options = {"method": "pipedream", "optimizer": momentum, "lr": 0.1, "epochs": 3} | options
        record = alkit.fit(network, (X, Y), progress=False, **own, **options)
        return torch.cat([each.detach().flatten() for each in network.parameters()]), record

    plain, cosine = moved()[0], moved(scheduler=lambda each: CosineAnnealingLR(each, 3))[0]
    assert not torch.allclose(plain, cosine, atol=1e-3)
    stopped, record = moved(scheduler=lambda each: StepLR(each, 1, 0.0))
    once = moved(epochs=1)[0]
    torch.testing.assert_close(stopped, once)
    assert record.history.lr.tolist() == [0.1, 0.0, 0.0]


class Queries(nn.Module):
    """Learned queries look at the features: a linear layer that no input reaches."""

    def __init__(self):
        super().__init__()
        self.queries, self.first = nn.Parameter(torch.randn(1, 4, 4)), nn.Linear(4, 4)
        self.attend = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x):
        x = x.view(len(x), 4, 4)
        queries = self.first(self.queries).expand(len(x), -1, -1)
        return (queries + self.attend(queries, x, x)[0]).flatten(1)


def test_half_backwards_take_layers_that_no_input_reaches():
    found = []
    for name in ("1f1b", "zero_bubble"):
        torch.manual_seed(0)
        network = net(Queries())
        options = {"micro": 4, "cuts": [2, 3], "optimizer": sgd, "lr": 0.1, "progress": False}
        alkit.fit(network, (X, Y), method=name, **options)
        found.append(torch.cat([each.detach().flatten() for each in network.parameters()]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["al", "al_pipeline", "local", "local_pipeline"])
@pytest.mark.parametrize(
    "made", [lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 3)), lambda: [net()]]
)
def test_one_block_that_gives_the_scores_has_nothing_below_it(name, made):
    with pytest.raises(ValueError, match="one block, which gives the scores"):
        alkit.fit(made(), (X, Y), method=name, progress=False)


def sequences(*ending):
    torch.manual_seed(0)
    made = []
    for channels in (1, 6):
        made += [nn.Conv1d(channels, 6, 5, padding=2), nn.BatchNorm1d(6), nn.ReLU()]
    return nn.Sequential(*made, *ending)


@pytest.mark.parametrize(
    ("name", "options"),
    [("bp", {}), ("al", {}), ("local", {}), ("local", {"rule": "cosine"})],
    ids=str,
)
def test_channels_of_a_sequence_are_features_and_positions_are_averaged(name, options):
    x = torch.randn(12, 1, 32)
    data = x, torch.arange(12) % 3
    record = alkit.fit(sequences(), data, method=name, num_classes=3, progress=False, **options)
    model = record.model
    bridge = [*model][-1] if name == "bp" else model[0].enc.b
    (pooled,) = [each for each in bridge.modules() if hasattr(each, "pool")]
    features = sequences().eval()(x)
    assert torch.equal(pooled.pool(features), features.mean(2))


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
