"""Target propagation as one call, in this process or over ranks that it starts."""

from pathlib import Path
from typing import Any

from alkit.data.arguments import changed
from alkit.data.parts import DataSet
from alkit.dtp.loop import run
from alkit.dtp.networks import Net
from alkit.dtp.record import Record
from alkit.dtp.settings import Settings
from alkit.dtp.trainer import feedback_for
from alkit.engine.launch import launch

__all__ = ["train"]


def train(
    net: Net,
    data: DataSet,
    method: str | None = None,
    *,
    ranks: int = 1,
    owners: list[int] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    heartbeat_s: float = 60.0,
    settings: Settings | None = None,
    **changes: Any,
) -> Record:
    """Train a network in place.

    Args:
        method: "dtp", "vanilla_dtp", "tp", "ddtp" or "bp"; default that of the settings.
        ranks: processes to share the feedback loops; the result has the same bits for any number.
        owners: rank of each loop; default the longest first, by measured seconds.
        progress: show a bar, in one process.
        heartbeat_s: see `alkit.launch`.
        checkpoint: written after each epoch; training goes on from it if it is there.
        settings, changes: see `Settings`.
    Raises:
        ValueError, NotFinite: see `alkit.dtp.loop.run`.
        RankFailed: a rank failed, for one of these reasons or another; names it, and none is left
            running.

    Example:
        >>> import alkit.dtp, alkit.data.datasets
        >>> data = alkit.data.datasets.load("digits", size=16)
        >>> net = alkit.dtp.network("tiny", channels=1)
        >>> record = alkit.dtp.train(net, data, iterations=2, progress=False)
        >>> record.losses.shape
        torch.Size([9])
    """
    if method is not None:
        changes["method"] = method
    settings = changed(settings or Settings, changes)
    path = None if checkpoint is None else Path(checkpoint)
    if ranks == 1:
        return run(net, data, settings, owners=owners, checkpoint=path, progress=progress)
    if settings.method == "bp":
        raise ValueError("bp has no feedback loops to share: set ranks to 1")
    # what is wrong is said before a start, and DDTP's maps are made
    feedback_for(net, settings, next(iter(data.train.batches(1)))[0])
    given = (net, data, settings, owners, path)
    options: dict[str, Any] = {"threads": settings.threads, "heartbeat_s": heartbeat_s}
    record = launch(_on_rank, *given, ranks=ranks, **options)[0]
    assert isinstance(record, Record)
    net.load_state_dict(record.state)
    return record


def _on_rank(
    net: Net, data: DataSet, settings: Settings, owners: list[int] | None, path: Path | None
) -> Record | None:
    """Run one rank; only rank 0's record travels."""
    import torch.distributed as dist

    record = run(net, data, settings, owners=owners, checkpoint=path, progress=False)
    return record if dist.get_rank() == 0 else None
