"""What a rank holds while it trains: the weights and moments of its own stage alone."""

from functools import partial

import pytest
import torch

from alkit.elastic.units import Units, World, is_dropped
from tests.unit.elastic.helpers import (
    SETTINGS,
    TASKS,
    adamw,
    close,
    expected,
    holding,
    images,
    make_vit,
    on_devices,
    shared_out,
    train,
    training,
)

# two stages to the end where the budget of parameters is small
RUNS = {
    f"{task} {schedule}, {budget}": (task, {"schedule": schedule, "budget": budget})
    for task in TASKS
    for schedule, budget in (("1f1b", None), ("gpipe", None), ("1f1b", 1e-9))
}


def _whole():
    """Return whether a rank has the whole network after a run that evaluates, and its shapes."""
    network = make_vit()
    _, there = holding(
        partial(train, network, images(), SETTINGS, freeze="none", validation=images(6), ranks=2)
    )
    whole = not any(map(is_dropped, network.parameters()))
    return there, whole, [p.shape for p in network.parameters()]


@pytest.fixture(scope="module")
def ranks():
    """What two ranks find, one run after the other."""
    runs = {
        name: partial(holding, training(task, micro=4, test=TASKS[task][1](10), **options))
        for name, (task, options) in RUNS.items()
    }
    return on_devices(runs | {"whole": _whole})


@pytest.mark.parametrize("name", RUNS)
def test_a_rank_lets_go_of_what_is_not_its_own(name, ranks):
    """In every layout: others' units, their moments, and frozen units but on first stages."""
    (task, options), make = RUNS[name], TASKS[RUNS[name][0]][0]
    for rank, (found, there) in enumerate(ranks[name]):
        close(found, expected(task))
        assert {layout.stages for layout in found.layouts} == ({2} if options["budget"] else {1, 2})
        assert there == [shared_out(make(), layout, rank) for layout in found.layouts]
    assert found.layouts[-1].start > 0


def test_all_ranks_have_all_again_at_the_end(ranks):
    """But not after an evaluation, for which all have all, too."""
    for there, whole, shapes in ranks["whole"]:
        assert there == SETTINGS["epochs"] * there[:1]
        assert len(there[0][0]) < len(make_vit().units)
        assert whole
        assert shapes == [p.shape for p in make_vit().parameters()]


def test_shapes_stay_and_values_do_not_unless_a_kept_unit_shares_them():
    network = make_vit()
    sizes, optimizer = network.sizes(), adamw(network.parameters())
    network(images().x).sum().backward()
    optimizer.step()
    Units(network, optimizer, World(alone=True))._keep({0, 1})
    assert network.sizes() == sizes
    assert not network.units[5].f.in_proj_weight.isfinite().any()
    assert optimizer.state.keys() == {*network.units[:2].parameters()}
    with pytest.raises(RuntimeError, match="written-to tensor"):
        network.units[5].norm.weight.data.copy_(torch.zeros(16))
    assert all(map(is_dropped, network.units[5].parameters()))
    network = make_vit()
    network.units[8].norm = network.units[1].norm
    optimizer = adamw(network.parameters())
    Units(network, optimizer, World(alone=True))._keep({1})
    assert not is_dropped(network.units[8].norm.weight)
    assert is_dropped(network.units[7].norm.weight)
