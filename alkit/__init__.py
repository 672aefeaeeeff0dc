"""Train deep networks without waiting for the end-to-end backward pass."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.3.0"

# Names are fetched when first used: torch takes seconds to import, and the command that starts
# notebooks in processes of their own does not need it.
_HOME = {
    "AE": "al.layers",
    "AL": "al.layers",
    "ALModel": "al.model",
    "BPModel": "al.backprop",
    "ENC": "al.layers",
    "METHODS": "methods",
    "best": "engine.callbacks:Best",
    "blocks": "models.blocks:as_blocks",
    "clipped": "engine.optimizers",
    "each_batch": "engine.rates:EachBatch",
    "evaluate": "engine.evaluate",
    "fit": "fitting",
    "judge": "judging",
    "launch": "engine.launch",
    "load": "saved",
    "one_hot": "data.labels",
    "patience": "engine.callbacks:Patience",
    "save": "saved",
    "set_device": "engine.device",
    "to_al": "al.convert",
    "to_bp": "al.convert",
    "to_local": "al.rules",
    "torchrun_group": "engine.launch",
    "train_epoch": "al.train",
}

_MODULES = {name: name for name in ("delayed", "dtp", "elastic", "lab", "split")}
_MODULES["datasets"] = "data.datasets"

__all__ = [*_HOME, *_MODULES]

_NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
# a notebook of this checkout finds `studies` also where its kernel works in another folder
if "ipykernel" in sys.modules and _NOTEBOOKS.is_dir() and str(_NOTEBOOKS) not in sys.path:
    sys.path.append(str(_NOTEBOOKS))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"alkit.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"alkit has no {name!r}: it has {', '.join(__all__)}")
    home, _, own = _HOME[name].partition(":")
    return getattr(import_module(f"alkit.{home}"), own or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
