"""Workers begin with the caller's state, so that all modes and executors end in the same bits."""

import shutil
import threading
from contextlib import ExitStack, nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import alkit
from alkit import dtp, launch, train_epoch
from alkit.data.parts import Pairs
from alkit.engine.caller import CallerState
from alkit.engine.run import run_single, run_threads
from alkit.schedule import task as schedules
from tests.helpers import dense_model, differences, made_batches, state_of, train_blocks
from tests.make import labelled, tanh_blocks
from tests.unit.delayed.nets import bits, mlp, momentum, vectors
from tests.unit.elastic.helpers import images, make_vit, train
from tests.unit.split.helpers import parts, units

CONTEXTS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def _associated(mode="al", workers=None, executor="threads", context=nullcontext):
    model, batches = dense_model(4), made_batches(5)
    with context():
        record = train_epoch(model, batches, mode, workers, executor=executor)
    return state_of(model) | {"losses": record.losses}


def _delayed(method, executor="single"):
    options = {"method": method, "cuts": [2, 4], "optimizer": momentum, "executor": executor}
    record = train_blocks(mlp(dropout=0.3), nn.functional.cross_entropy, vectors(6), **options)
    return dict(enumerate([*bits(record.pipeline), record.losses]))


def _on_ranks():
    found = [_delayed(method, "ranks") for method in ("pipedream", "fr")]
    return [_associated("al_pipeline", 3, "ranks"), *found]


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_bits_of_all_modes_under_the_callers_state(context):
    around = {"context": CONTEXTS[context]}
    expected = _associated(**around)
    assert bool(differences(expected, _associated())) == (context == "autocast")
    for mode in (("al_m", 3), ("al_fm", None), ("al_pipeline", 2), ("al_pipeline", 3)):
        assert not differences(expected, _associated(*mode, **around))


def test_the_bits_of_ranks_under_autocast():
    methods = ["pipedream", "fr"]
    plain = [_delayed(method) for method in methods]
    with CONTEXTS["autocast"]():
        expected = [_associated(), *map(_delayed, methods)]
        threads = [_associated(), *(_delayed(method, "threads") for method in methods)]
        ranks = launch(_on_ranks, ranks=3)
    assert all(map(differences, plain, expected[1:]))
    for other in (threads, *ranks):
        assert not any(map(differences, expected, other))


def test_elastic_training_under_autocast_on_all_executors():
    def trained(**options):
        data = Pairs(images().x.float(), images().y)
        return train(make_vit(0.2).float(), data, epochs=3, batch_size=8, **options).state

    plain = trained(workers=2)
    with CONTEXTS["autocast"]():
        single, ranks = trained(workers=2), trained(ranks=2)
    assert differences(single, plain)
    for name, tensor in single.items():  # replicas add their gradients in another order
        torch.testing.assert_close(ranks[name], tensor, rtol=0, atol=2e-3)


@pytest.mark.parametrize("context", ["autocast", "inference_mode"])
def test_split_learnings_threads_and_ranks_begin_with_the_callers_state(context):
    [data] = parts([32])
    options = {"method": "pipelearn", "cuts": [2], "micro": 2, "batch_size": 8, "lr": 0.1}
    options["optimizer"] = partial(torch.optim.SGD, momentum=0.9)

    def trained(ranks, around):
        blocks = units()
        with around():
            alkit.fit(blocks, data, ranks=ranks, progress=False, **options)
        return nn.ModuleList(blocks).state_dict()

    local, apart = (trained(ranks, CONTEXTS[context]) for ranks in (1, 3))
    assert not differences(local, apart)
    assert bool(differences(local, trained(1, nullcontext))) == (context == "autocast")


@pytest.mark.parametrize("context", ["autocast", "inference_mode"])
def test_dtps_loop_has_gradients_and_no_old_casts(context):
    x = torch.randn(96, 1, 16, 16)

    def digest(*contexts):
        net = dtp.network("tiny", channels=1)
        own = {"method": "dtp", "batch_size": 32, "iterations": 2, "progress": False}
        with ExitStack() as stack:
            for each in contexts:
                stack.enter_context(each())
            return alkit.fit(net, (x, torch.arange(96) % 10), **own).details.digest

    uncached = lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False)  # noqa: E731
    if context == "autocast":
        assert digest(CONTEXTS[context]) == digest(uncached) != digest()
    else:
        assert digest(CONTEXTS[context]) == digest()


def _by_hand(model, batches):
    for x, y in batches:
        for layer in model:
            x, y = layer(x, y)
            thread = threading.Thread(target=layer.backward_and_update)
            thread.start()
            thread.join()


@pytest.mark.parametrize("mode", ["al", "al_pipeline", "by hand"])
def test_autocast_around_an_epoch_follows_the_weights(mode):
    """Its cache would hand out casts of the first batch's weights; around each batch it can't."""
    train, dropout = partial(train_epoch, mode=mode), 0.3
    if mode == "by hand":
        train, dropout = _by_hand, 0.0
    around, within = (dense_model(3, dropout=dropout) for _ in range(2))
    with CONTEXTS["autocast"]():
        before = around.predict(made_batches(1)[0][0])
        train(around, made_batches(4))
        assert not torch.equal(before, around.predict(made_batches(1)[0][0]))
    for batch in made_batches(4):
        with CONTEXTS["autocast"]():
            train(within, [batch])
    assert not differences(state_of(around), state_of(within))


class _Spy:
    """A stage that writes down the state in which it runs."""

    def __init__(self):
        self.seen = []

    def forward(self, payload, batch, micro):
        self.seen.append(CallerState.here())
        return payload

    backward = update = forward


@pytest.mark.parametrize("run", [run_single, run_threads])
def test_stages_run_in_the_callers_state_with_gradients(run):
    stages = [_Spy(), _Spy()]
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), torch.no_grad():
        expected = CallerState.here()
        run(schedules.al_pipeline(2, [1]), stages, [1, 2])
        assert CallerState.here() == expected
    rest = expected.device, expected.dtype, expected.deterministic
    seen = [*stages[0].seen, *stages[1].seen]
    assert seen == [CallerState(expected.autocast, True, False, *rest)] * 12


def test_ranks_begin_with_the_callers_defaults():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with torch.no_grad():
            assert launch(CallerState.here, ranks=1) == [CallerState.here()]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(before)


def _compiled(backend, mode, workers=None, **options):
    """Train compiled blocks on three batches."""
    torch._dynamo.reset()
    model = dense_model(2, dropout=0.5)
    for layer in model:
        layer.enc.f = torch.compile(layer.enc.f, backend=backend) if backend else layer.enc.f
    train_epoch(model, made_batches(3), mode, workers, **options)
    return model


def test_compiled_blocks_train_compiled():
    """Fused dropout of a compiled block draws what the plain one does."""
    counter = CompileCounterWithBackend("aot_eager")
    model, plain = (_compiled(backend, "al_pipeline", 2) for backend in (counter, None))
    assert counter.frame_count >= 1
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))


@pytest.mark.filterwarnings("ignore")
def test_dropout_that_inductor_compiles_draws_by_batch():
    """Its seeds are drawn by an operator that takes a generator, so bits depend on no timing."""
    if not shutil.which("g++"):
        pytest.skip("no C++ compiler")
    one, other = _compiled("inductor", "al"), _compiled("inductor", "al_pipeline", 2, cuts=[1])
    assert not differences(state_of(one), state_of(other))


@pytest.mark.parametrize("method", ["al_pipeline", "local", "bp", "1f1b", "pipelearn"])
def test_what_is_made_before_training_is_the_same_under_autocast(method):
    def made(context):
        options = {"method": method, "lr": 0.0, "batch_size": 20, "progress": False}
        with context():
            return alkit.fit(tanh_blocks(3), labelled(40), **options).model.state_dict()

    assert not differences(made(nullcontext), made(CONTEXTS["autocast"]))


@pytest.mark.parametrize("made", [alkit.to_al, alkit.to_local])
def test_a_model_is_made_where_its_blocks_are(made):
    blocks, x = tanh_blocks(), torch.randn(8, 6)
    with torch.device("meta"):
        model = made(blocks, 3, x)
    assert {each.device.type for each in model.parameters()} == {"cpu"}
