"""What a run leaves: measures, rates, saved networks, longer runs, and the same bits on ranks."""

import copy
from functools import cache, partial

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

import alkit
from tests import fitted, machines
from tests.conformance.families import FAMILIES, C, flat, held, net, rows

pytestmark = pytest.mark.filterwarnings("ignore")
# tails of split learning, and heads of local rules, compare classes
COMPARED = [each for each in FAMILIES if each.method not in ("pipelearn", "local_pipeline")]
OPTIONS = {"batch_size": 8, "lr": 0.01}


@held(COMPARED)
def test_numbers_are_measured_by_their_loss(family):
    x, _ = rows(26)
    data = x, x[:, :1] - x[:, 1:2]
    found = family.fit(net(1), data, data, data, epochs=2, loss=mse_loss, **OPTIONS)
    assert abs(mse_loss(found.predict(x), data[1]) - found.metrics["loss"]) < 1e-5
    assert found.test_correct is None
    several = x, (x[:, :C] > 0).float()
    own = {"loss": binary_cross_entropy_with_logits} | OPTIONS
    assert set(family.fit(net(), several, several, several, **own).metrics) == {"loss"}


@held()
def test_metrics_of_one_s_own_stand_beside_accuracy(family):
    def worst(scores, y):
        return scores.gather(1, y[:, None]).min()

    data = rows(26)
    found = family.fit(net(), data, data, data, metrics={"worst": worst}, **OPTIONS)
    assert {"val_acc", "val_worst"} <= set(found.history)
    assert set(found.metrics) == {"accuracy", "loss", "worst"}


@held()
def test_an_optimiser_in_groups_takes_the_steps_of_one_in_one_group(family):
    """Groups hold the parameters in another order than the network; momentum shows what is kept."""

    def one(parameters, lr):
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)

    def grouped(parameters, lr):
        own = list(parameters)
        flat, wide = [p for p in own if p.dim() < 2], [p for p in own if p.dim() > 1]
        return torch.optim.SGD([{"params": wide}, {"params": flat}], lr=lr, momentum=0.9)

    trained = [
        flat(family.fit(net(), rows(26), optimizer=made, epochs=2, **OPTIONS).model)
        for made in (one, grouped)
    ]
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-6)


@held()
def test_a_longer_run_is_the_long_one(family, tmp_path):
    fit = partial(family.fit, net(), rows(26), **OPTIONS)
    whole = copy.deepcopy(family.fit(net(), rows(26), epochs=3, **OPTIONS).model)
    fit(epochs=1, checkpoint=tmp_path / "run")
    longer = partial(family.fit, net(), rows(26), epochs=3, checkpoint=tmp_path / "run")
    assert torch.equal(flat(longer(**OPTIONS).model), flat(whole))


@held()
def test_a_network_is_saved_loaded_and_exported(family, tmp_path):
    record, x = family.fit(net(), rows(26), **OPTIONS), rows(5, seed=1)[0]
    alkit.save(record, tmp_path / "net")
    loaded = alkit.load(tmp_path / "net", net())
    assert torch.equal(loaded.predict(x), record.predict(x))
    exported = torch.export.export(record.model.eval(), (x,)).module()
    torch.testing.assert_close(exported(x), record.predict(x))


@cache
def by_torchrun():
    done = machines.on_one(fitted.__file__, *fitted.METHODS)
    assert not done.returncode, done.stderr
    assert "CACHE off" not in done.stdout  # all ranks of a machine map the same features
    return fitted.digests(done.stdout)


@pytest.mark.machines
@pytest.mark.parametrize("method", fitted.METHODS)
def test_ranks_of_torchrun_end_in_the_bits_of_one_process(method):
    """Of elastic training two devices are another layout, replicas or a pipeline: two ranks."""
    alone = fitted.fit(method, ranks=2 if method == "elastic" else 1)
    assert by_torchrun()[method] == dict.fromkeys("01", fitted.digest(alone))
