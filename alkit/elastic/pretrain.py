"""Make weights to begin with: words to restore for BERT, classes of tiny ImageNet for the ViT.

Both go through `alkit.elastic.train` without freezing, so they run over ranks and go on from a
checkpoint.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from alkit.corpora import sst2_sentences
from alkit.elastic.examples import Examples
from alkit.elastic.network import Network
from alkit.mlm import MaskedPairs
from alkit.models.bert import IGNORED, BertSizes, bert
from alkit.prose import load_prose, wikitext

__all__ = ["corpus", "masked_examples", "masked_words"]


def masked_words(sizes: BertSizes, *, seed: int = 0) -> Network:
    """Return BERT with the heads of its pretraining, as a network of an embedding and layers.

    Its inputs are (tokens, segments, mask, places), its labels the words to restore. Texts are
    single: what one is tuned on later are single sentences, too.
    """
    embedding, *layers, heads = bert(sizes, seed=seed)
    halves = [half for layer in layers for half in layer]
    return Network([embedding, *halves, heads], sizes.layers, _loss, seed=seed)


def masked_examples(
    documents: Sequence[Sequence[str]], tokenizer: Tokenizer, *, tokens: int, passes: int, seed: int
) -> Examples:
    """Return the examples of several passes through the documents, each with words of its own."""
    made = MaskedPairs([list(d) for d in documents], tokenizer, tokens, seed, pairs=False)
    epochs = [made.epoch(number) for number in range(passes)]
    *x, words_NM, _ = (torch.cat(column) for column in zip(*epochs, strict=True))
    return Examples(tuple(x), words_NM)


def corpus(name: str, sentences: int = 0) -> list[list[str]]:
    """Return documents to pretrain on: "pydocs", or "wikitext+sst2".

    The latter has WikiText's valid and test articles, and SST-2's training sentences in groups of
    twenty.

    Args:
        sentences: at most, about; 0 for all.
    Raises:
        ValueError: another name.
    """
    if name == "pydocs":
        found = load_prose("pydocs")
    elif name == "wikitext+sst2":
        (texts, _), _ = sst2_sentences()
        groups = [texts[at : at + 20] for at in range(0, len(texts) - 19, 20)]
        found = [*wikitext("valid"), *wikitext("test"), *groups]
    else:
        raise ValueError(f"data is {name!r}: give pydocs or wikitext+sst2")
    kept, count = [], 0
    for document in found:
        if sentences and count >= sentences:
            break
        kept.append(document)
        count += len(document)
    return kept


def _loss(scores: tuple[Tensor, Tensor], words_BM: Tensor) -> Tensor:
    return F.cross_entropy(scores[0].flatten(0, 1), words_BM.flatten(), ignore_index=IGNORED)
