"""What a rank holds beside activations, calculated from shapes, against a budget of bytes."""

from alkit.elastic.held import Held, bytes_of
from alkit.elastic.layout import Layout
from alkit.elastic.network import Network
from alkit.elastic.optim import Recipe
from alkit.elastic.settings import Settings
from alkit.elastic.sync import tensors_of


def held(
    network: Network, recipe: Recipe, layout: Layout, stage: int, activations: int = 0
) -> Held:
    """Return what a rank of a stage holds, with so many bytes of activations."""
    units, first = network.units, network.first(layout.frozen)
    low, high = layout.bounds[stage]
    active = [units[n] for n in range(max(low, first), high)]
    frozen = [units[n] for n in range(low, min(high, first))]
    if stage == 0:
        frozen += units[: layout.start]
    trained = {id(p): p for u in active for p in u.parameters() if p.requires_grad}.values()
    gradients = bytes_of(trained)
    return Held(
        weights=bytes_of(tensor for unit in active for tensor in tensors_of(unit)),
        frozen=bytes_of(tensor for unit in frozen for tensor in tensors_of(unit)),
        gradients=gradients,
        moments=recipe.moment_bytes(trained),
        activations=activations,
        message=gradients if layout.replicas > 1 else 0,
    )


def fits(network: Network, settings: Settings, layout: Layout, activations: int = 0) -> bool:
    """Whether a rank of each stage stays within the budget."""
    try:
        for stage in range(layout.stages):
            check(network, settings, layout, stage, activations)
    except ValueError:
        return False
    return True


def check(
    network: Network, settings: Settings, layout: Layout, stage: int, activations: int = 0
) -> None:
    """Raise a ValueError that says what does not fit, and what would help."""
    budget = settings.memory_budget
    found = held(network, settings.recipe, layout, stage, activations)
    if budget is not None and found.total > budget:
        raise ValueError(
            f"stage {stage} of {layout.stages} needs {found.total:,} bytes with {layout.frozen}"
            f" frozen layers ({found}) and memory_budget is {budget:,}: give more stages,"
            " a smaller batch, more micro-batches or a larger budget"
        )
