"""The families, BERT and ViT on the simulated accelerator; how often a step waits for it."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.data.parts import DataSet, Part
from alkit.elastic.encoder import BertSizes, ViTSizes, bert_classifier, vit_classifier
from studies.al import families
from tests.helpers import CLASSES, dense_model, made_batches
from tests.sim.device import operators, start

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
TWO = ["sim:0", "sim:1"]
WAITS = ("to host", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim")


TEXT_SIZES = {
    "lstm": {"blocks": 2, "width": 8, "hidden": 6},
    "transformer": {"blocks": 2, "width": 8, "heads": 2, "ffn": 8},
}


def _texts(count=24, tokens=7):
    x = torch.randint(2, 30, (count, tokens), generator=torch.Generator().manual_seed(0))
    x[1::2, 4:] = 0
    part = Part(x, torch.arange(len(x)) % CLASSES, CLASSES)
    return DataSet("made-up texts", part, part, part, CLASSES, tuple("abc"), "w" * 30)


def _images(count=24):
    x = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    part = Part(x, torch.arange(count) % 3, 3)
    return DataSet("made-up images", part, part, part, 3, ("a", "b", "c"))


def _sizes(family):
    return TEXT_SIZES.get(family, {"width": 0.0625})


def data_of(family):
    """Texts without padding: an accelerator works on it too, and draws noise for it."""
    if family in ("vgg", "resnet"):
        return _images(12)
    data = _texts(12)
    data.train.x[data.train.x == 0] = 3
    return data


def fitted(family, method, device, narrow=None):
    torch.manual_seed(0)
    data = data_of(family)
    kind = "bp" if method == "bp" else "al"
    recipe = "fixed_codes" if method == "local_pipeline" else "detached"
    model = families.model(family, data, kind, recipe=recipe, **_sizes(family))
    options = {"device": device, "batch_size": 4, "progress": False}
    with ExitStack() as stack:
        for kind in ("cpu", "sim") if narrow else ():
            stack.enter_context(torch.autocast(kind, narrow))
        return alkit.fit(model, data, method=method, **options)


@pytest.mark.parametrize("method", ["bp", "al_pipeline"])
@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_family_trains_on_two_devices_as_on_the_cpu(family, method):
    here, there = fitted(family, method, None), fitted(family, method, TWO)
    near = 1e-6 if family in ("vgg", "resnet") else 1e-4  # LSTM and attention have other kernels
    assert torch.allclose(here.losses, there.losses, rtol=near)
    assert here.history.val_acc.tolist() == there.history.val_acc.tolist()


@pytest.mark.parametrize("family", ["resnet", "transformer"])
def test_bfloat16(family):
    here, there = (fitted(family, "local_pipeline", d, torch.bfloat16) for d in (None, TWO))
    # rounding to 1 in 256, which each processor's own kernels do at other places, moves the weights
    for batch, near in enumerate((4e-3, 1e-2, 2e-2)):
        assert torch.allclose(here.losses[batch], there.losses[batch], rtol=near)
    assert not torch.equal(there.losses, fitted(family, "local_pipeline", TWO).losses)


def padded(family):
    data = _texts(12)
    torch.manual_seed(0)
    model = families.model(family, data, "al", **_sizes(family))
    for module in model.modules():  # noise would be drawn for padding too
        module.p = 0.0 if isinstance(module, nn.Dropout) else getattr(module, "p", None)
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model, data


@pytest.mark.parametrize("family", ["lstm", "transformer"])
def test_padding_changes_nothing(family):
    losses = []
    for device in (None, "sim:0"):
        model, data = padded(family)
        losses.append(alkit.fit(model, data, device=device, batch_size=4, progress=False).losses)
    assert torch.allclose(*losses, rtol=1e-4)


def bert():
    sizes = BertSizes(layers=2, width=8, heads=2, mlp=8, vocabulary=30, tokens=7)
    tokens = torch.randint(2, 30, (8, 7), generator=torch.Generator().manual_seed(0))
    batches = (tokens, tokens % 2, tokens > 0), torch.arange(8) % 3
    return list(bert_classifier(sizes, 3)), [batches] * 3


def pictures():
    sizes = ViTSizes(layers=2, width=8, heads=2, mlp=8, patch=4, image=8, classes=3)
    x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return list(vit_classifier(sizes)), [(x, torch.arange(8) % 3)] * 3


@pytest.mark.parametrize("method", ["bp", "pipedream", "1f1b"])
@pytest.mark.parametrize("made", [bert, pictures], ids=["bert", "vit"])
def test_bert_and_vit(made, method):
    losses = []
    for device in (None, TWO):
        blocks, batches = made()
        if method == "bp":
            model = alkit.BPModel(blocks, optimizer=partial(torch.optim.SGD), loss=F.cross_entropy)
        else:
            model = alkit.delayed.Pipeline(blocks, F.cross_entropy, [len(blocks) // 2])
        own = {"micro": 2} if method == "1f1b" else {}
        options = {"method": method, "device": device, "progress": False}
        losses.append(alkit.fit(model, batches, **own, **options).losses)
    assert torch.allclose(*losses, rtol=1e-4)


def waits(train):
    operators.clear()
    train()
    return sum(operators[name] for name in WAITS)


# an LSTM's texts are packed, for which the host reads their lengths
@pytest.mark.parametrize("family", ["vgg", "resnet", "transformer", "dense"])
def test_the_host_waits_for_a_layer_s_losses_and_for_nothing_else(family):
    """Copies to the host, and operators whose result's size the host must know."""
    if family == "dense":
        model, batches = dense_model(3), made_batches(2)
    else:
        data = _images(8) if family in ("vgg", "resnet") else _texts(8)
        model = families.model(family, data, "al", recipe="detached", **_sizes(family))
        batches = list(data.train.batches(4))
    alkit.set_device(model, ["sim:0"] * len(model))
    more = batches * (8 // len(batches))
    assert waits(lambda: alkit.train_epoch(model, more, workers=2)) == len(model)
    assert waits(lambda: alkit.train_epoch(model, batches, "al")) == len(model)


@pytest.mark.parametrize("method", ["ddg", "pipedream", "1f1b"])
def test_delayed_gradients_wait_for_losses_and_between_devices(method):
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)) for _ in range(3)] + [nn.Linear(6, 3)]
    pipeline = alkit.delayed.Pipeline(blocks, F.cross_entropy, [2])
    alkit.set_device(pipeline, TWO)
    batches = [(x, y.argmax(1)) for x, y in made_batches(8)]
    micro = {"micro": 2} if alkit.delayed.METHODS[method].accumulates else {}
    train = partial(alkit.delayed.train_epoch, pipeline, batches, method, "threads", **micro)
    assert waits(train) == 1


def test_times_are_the_hosts():
    model = alkit.set_device(dense_model(3), ["sim:0", "sim:0", "sim:1"])
    record = alkit.train_epoch(model, made_batches(6), "al_pipeline", workers=2)
    assert 0 < record.timeline.span_s < record.seconds
    assert all(0 <= i.start_s <= i.end_s for i in record.timeline.intervals)
