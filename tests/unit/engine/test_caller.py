"""Workers begin with the caller's state, so that all modes and executors end in the same bits."""

import threading
from contextlib import ExitStack, nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import alkit
from alkit import dtp, launch, train_epoch
from alkit.data import datasets
from alkit.data.parts import Pairs
from alkit.engine.caller import CallerState
from alkit.engine.run import run_single, run_threads
from alkit.schedule import task as schedules
from tests.helpers import dense_model, differences, made_batches, state_of, train_blocks
from tests.unit.delayed.nets import bits, mlp, momentum, vectors
from tests.unit.elastic.helpers import images, make_vit, train
from tests.unit.split.helpers import parts, units

MODES = (("al", None), ("al_m", 3), ("al_fm", None), ("al_pipeline", 2), ("al_pipeline", 3))
CONTEXTS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def _trained(mode, workers, executor="threads", context=nullcontext):
    model, batches = dense_model(4), made_batches(5)
    with context():
        record = train_epoch(model, batches, mode, workers, executor=executor)
    return state_of(model) | {"losses": record.losses}


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_bits_of_all_modes_under_the_callers_state(context):
    """Ranks included, for autocast."""
    states = [_trained(mode, workers, context=CONTEXTS[context]) for mode, workers in MODES]
    plain = _trained("al", None)
    assert bool(differences(states[0], plain)) == (context == "autocast")
    if context == "autocast":
        with CONTEXTS[context]():
            states += launch(lambda: _trained("al_pipeline", 2, "ranks"))
    for other in states[1:]:
        assert not differences(states[0], other)


def _delayed(executor, method="pipedream"):
    options = {"method": method, "cuts": [2, 4], "optimizer": momentum}
    record = train_blocks(
        mlp(dropout=0.3), nn.functional.cross_entropy, vectors(6), executor=executor, **options
    )
    tensors = [*bits(record.pipeline), record.losses]
    return {str(place): tensor for place, tensor in enumerate(tensors)}


def test_delayed_gradients_under_autocast_on_all_executors():
    methods = ["pipedream", "fr"]
    plain = [_delayed("single", method) for method in methods]
    with CONTEXTS["autocast"]():
        expected = [_delayed("single", method) for method in methods]
        threads = [_delayed("threads", method) for method in methods]
        ranks = launch(lambda: [_delayed("ranks", method) for method in methods], ranks=3)
    for at in range(len(methods)):
        assert differences(plain[at], expected[at])
        for other in (threads, *ranks):
            assert not differences(expected[at], other[at])


def test_elastic_training_under_autocast_on_all_executors():
    def trained(**options):
        network, data = make_vit(0.2).float(), images()
        data = Pairs(data.x.float(), data.y)
        options = {"epochs": 3, "batch_size": 8} | options
        return train(network, data, **options).state

    plain = trained(workers=2)
    with CONTEXTS["autocast"]():
        single, ranks = trained(workers=2), trained(ranks=2)
    assert differences(single, plain)
    for name, tensor in single.items():  # replicas add their gradients in another order
        torch.testing.assert_close(ranks[name], tensor, rtol=0, atol=2e-3)


@pytest.mark.parametrize("context", CONTEXTS)
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


@pytest.mark.parametrize("context", CONTEXTS)
def test_dtps_loop_has_gradients_and_no_old_casts(context):
    data = datasets.load("digits", size=16)

    def digest(*contexts):
        net = dtp.network("tiny", channels=1)
        with ExitStack() as stack:
            for each in contexts:
                stack.enter_context(each())
            run = alkit.fit(net, data, method="dtp", batch_size=512, progress=False)
            return run.details.digest

    uncached = lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False)  # noqa: E731
    if context == "autocast":
        assert digest(CONTEXTS[context]) == digest(uncached) != digest()
    else:
        assert digest(CONTEXTS[context]) == digest()


def _epoch(mode, model, batches):
    train_epoch(model, batches, mode)


def _by_hand(model, batches):
    for x, y in batches:
        for layer in model:
            x, y = layer(x, y)
            thread = threading.Thread(target=layer.backward_and_update)
            thread.start()
            thread.join()


@pytest.mark.parametrize("train", [partial(_epoch, "al"), partial(_epoch, "al_pipeline"), _by_hand])
def test_autocast_around_an_epoch_follows_the_weights(train):
    """Its cache would hand out casts of the first batch's weights; around each batch it can't."""
    dropout = 0.0 if train is _by_hand else 0.3
    around, within = dense_model(3, dropout=dropout), dense_model(3, dropout=dropout)
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
    seen = [*stages[0].seen, *stages[1].seen]
    assert len(seen) == 12
    for state in seen:
        assert state == CallerState(
            expected.autocast, True, False, expected.device, expected.dtype, expected.deterministic
        )


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


def _compiled(model, backend):
    for layer in model:
        layer.enc.f = torch.compile(layer.enc.f, backend=backend)
    return model


def test_compiled_blocks_train_compiled():
    """Fused dropout of a compiled block draws what the plain one does."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    plain, model = (dense_model(2, dropout=0.5) for _ in range(2))
    train_epoch(_compiled(model, counter), made_batches(3), "al_pipeline", 2)
    train_epoch(plain, made_batches(3), "al_pipeline", 2)
    assert counter.frame_count >= 1
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))


@pytest.mark.filterwarnings("ignore")
def test_dropout_that_inductor_compiles_draws_by_batch():
    """Its seeds are drawn by an operator that takes a generator, so bits depend on no timing."""
    torch._dynamo.reset()
    states = []
    for mode, workers in (("al", None), ("al_pipeline", 2)):
        model = _compiled(dense_model(2), "inductor")
        try:
            train_epoch(model, made_batches(2), mode, workers, cuts=[1] if workers else None)
        except Exception as error:
            if "compiler" in str(error).lower():
                pytest.skip("no C++ compiler")
            raise
        states.append(state_of(model))
    assert not differences(*states)


@pytest.mark.parametrize("method", ["al_pipeline", "local", "bp", "1f1b", "pipelearn"])
def test_what_is_made_before_training_is_the_same_under_autocast(method):
    def made(context):
        torch.manual_seed(0)
        blocks = [*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)), nn.Linear(6, 3)]
        x, y = torch.randn(40, 6), torch.arange(40) % 3
        options = {"lr": 0.0, "batch_size": 20, "progress": False}
        with context():
            record = alkit.fit(blocks, (x, y), method=method, **options)
        return record.model.state_dict()

    assert not differences(made(nullcontext), made(CONTEXTS["autocast"]))


@pytest.mark.parametrize("made", [alkit.to_al, alkit.to_local])
def test_a_model_is_made_where_its_blocks_are(made):
    blocks, x = [nn.Linear(6, 6), nn.Linear(6, 3)], torch.randn(8, 6)
    with torch.device("meta"):
        model = made(blocks, 3, x)
    assert {each.device.type for each in model.parameters()} == {"cpu"}
