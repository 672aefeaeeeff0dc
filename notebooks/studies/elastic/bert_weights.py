"""Put published BERT weights, in Hugging Face's names, into the units of `alkit.models.bert`.

A local folder with `model.safetensors` is read; nothing is downloaded, nothing is unpickled.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor, nn

from alkit.models.bert import Attention, Embedding, EncoderLayer, FeedForward, Heads, Pooler

__all__ = ["load_bert"]

FILE = "model.safetensors"
BODY = "bert."
# our module: theirs, by kind of unit; {} is the number of the layer
NAMES: dict[type[nn.Module], dict[str, str]] = {
    Embedding: {
        "words": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "segments": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
    },
    Attention: {
        "query": "encoder.layer.{}.attention.self.query",
        "key": "encoder.layer.{}.attention.self.key",
        "value": "encoder.layer.{}.attention.self.value",
        "mix": "encoder.layer.{}.attention.output.dense",
        "norm": "encoder.layer.{}.attention.output.LayerNorm",
    },
    FeedForward: {
        "up": "encoder.layer.{}.intermediate.dense",
        "down": "encoder.layer.{}.output.dense",
        "norm": "encoder.layer.{}.output.LayerNorm",
    },
    Pooler: {"dense": "pooler.dense"},
    Heads: {
        "pooler": "pooler.dense",
        "next": "cls.seq_relationship",
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "decoder": "cls.predictions.decoder",
    },
}
OLD = {"weight": "gamma", "bias": "beta"}  # of norms, in the first published files
TIED = {  # left out of a file, as they are those of another tensor
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def load_bert(units: Sequence[nn.Module], folder: str | Path) -> int:
    """Return how many tensors were taken; heads that the file does not know stay as they are.

    Raises:
        FileNotFoundError: no `model.safetensors` in the folder.
        ValueError: a tensor is missing or has another shape, or the file is damaged.
    """
    path = Path(folder) / FILE
    if not path.exists():
        raise FileNotFoundError(f"no {FILE} in {folder}: give the folder of a published BERT")
    try:
        stored = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    state = {name.removeprefix(BODY): tensor for name, tensor in stored.items()}
    taken = 0
    for unit, number in _numbered(units):
        for own, theirs in NAMES.get(type(unit), {}).items():
            for name, parameter in unit.get_submodule(own).named_parameters():
                found = _found(state, theirs.format(number), name)
                if found.shape != parameter.shape:
                    raise ValueError(
                        f"{theirs.format(number)}.{name} in {path} is {tuple(found.shape)}, not"
                        f" {tuple(parameter.shape)}: give the sizes of that BERT"
                    )
                parameter.data.copy_(found)
                taken += 1
    return taken


def _numbered(units: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, int]]:
    """Yield every half of a layer, and the other units, with the number of the layer."""
    layer = 0
    for unit in units:
        for half in unit if isinstance(unit, EncoderLayer) else [unit]:
            yield half, layer
            layer += isinstance(half, FeedForward)


def _found(state: Mapping[str, Tensor], module: str, name: str) -> Tensor:
    wanted = f"{module}.{name}"
    old = f"{module}.{OLD[name]}" if name in OLD else wanted
    for each in (wanted, old, TIED.get(wanted, wanted)):
        if each in state:
            return state[each]
    raise ValueError(f"no tensor {wanted}: are these weights of a BERT with as many layers?")
