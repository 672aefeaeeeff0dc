"""Make weights to begin with: words to restore for BERT, classes of tiny ImageNet for the ViT.

    [CLS] a story that [MASK] no one [SEP]      restore: surprises
      └── of a text that has a class: name it

Both networks go through `alkit.fit` without freezing, so they run over ranks and go on from a
checkpoint. In `notebooks/`, 25 to 45 minutes on two cores, in as many pieces as you like:

    python -m studies.elastic.pretrain bert --folder runs/weights      (or: words, vit)
"""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

import alkit
from alkit.data import pydocs
from alkit.data.corpora import imdb_reviews, sst2_sentences
from alkit.data.prose import Documents, wikitext
from alkit.data.wordpiece import load_wordpiece, wordpiece
from alkit.elastic import Recipe, Settings
from alkit.elastic.examples import Examples
from alkit.elastic.network import Network
from alkit.models.bert import BertSizes, bert
from studies.elastic.ablation import network_for, text_sizes
from studies.elastic.masking import IGNORED, MaskedPairs
from studies.elastic.pretrained import save_body
from studies.elastic.tasks import load_task

GROUP = 20  # sentences that stand alone are put together, so that texts have some length
BREAK = re.compile(r"(?:<br */?>)+")
END = re.compile(r"(?<=[.?!])\s+")


class Plan(NamedTuple):
    """What to pretrain.

    Attributes:
        data: of a BERT the texts, see `corpus`; of a ViT a set of pictures.
        labels: learn the classes of texts that have some, too.
        sentences: of each of the texts, about; 0 for all.
        vocabulary, tokens: of a BERT; a ViT has patches of side `patch`.
        every: steps between checkpoints; 0: one an epoch.
    """

    data: str
    passes: int
    lr: float
    labels: bool = True
    sentences: int = 0
    vocabulary: int = 4096
    tokens: int = 32
    width: int = 64
    patch: int = 8
    batch: int = 128
    every: int = 0

    @property
    def texts(self) -> bool:
        """Whether it is a BERT."""
        return set(self.data.split("+")) <= set(SOURCES)


PLANS = {
    "bert": Plan("wikitext+sst2+imdb", passes=4, lr=2e-3, every=250),
    "words": Plan("wikitext+sst2+imdb", passes=2, lr=2e-3, every=250, labels=False),
    "vit": Plan("tiny_imagenet", passes=30, lr=1e-3),
}


def pretrain(plan: Plan, folder: Path, *, ranks: int = 1, seed: int = 0) -> Path:
    """Train a network of twelve layers, nothing frozen; return its embedding's and layers' file.

    Args:
        folder: for checkpoint, tokenizer and weights; a run that was stopped goes on from there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = "bert" if plan.texts else "vit"
    if plan.texts:
        network, examples = _texts(plan, folder, seed)
    else:
        task = load_task(plan.data, seed=seed)
        network = network_for(task, width=plan.width, patch=plan.patch, seed=seed)
        examples = task.train
    settings = Settings(
        freeze="none",
        cache=False,
        stages=1,
        epochs=1 if plan.texts else plan.passes,
        batch=plan.batch,
        micro=1,
        recipe=Recipe(lr=plan.lr, weight_decay=0.01),
        every=plan.every,
        seed=seed,
    )
    own = {"method": "elastic", "settings": settings, "checkpoint": folder / f"{kind}.pt"}
    record = alkit.fit(network, examples, ranks=ranks, **own)
    assert record.losses is not None  # it trained
    losses = record.losses.flatten()
    told = {"data": plan.data, "samples": len(losses) * plan.batch}
    made = folder / f"{kind}.safetensors"
    save_body(network, made, loss=round(losses[-20:].mean().item(), 3), **told)
    return made


def _texts(plan: Plan, folder: Path, seed: int) -> tuple[Network, Examples]:
    found, words = corpus(plan.data, plan.sentences), folder / "tokenizer.json"
    if not (folder / "bert.pt").exists():  # a checkpoint goes on with its own words
        lines = [line for document in found.documents for line in document]
        wordpiece(lines, plan.vocabulary).save(str(words))
    tokenizer = load_wordpiece(words)
    sizes = text_sizes(12, plan.width, 4, tokenizer.get_vocab_size(), plan.tokens)
    options = {"tokens": plan.tokens, "passes": plan.passes, "seed": seed}
    labels = found.labels if plan.labels else None
    network = masked_words(sizes, found.classes, seed=seed)
    return network, masked_examples(found.documents, tokenizer, labels=labels, **options)


class Corpus(NamedTuple):
    """Text to pretrain on.

    Attributes:
        documents: sentences by document.
        labels: the class of each document, `studies.elastic.masking.IGNORED` where it has none.
        classes: how many.
    """

    documents: Documents
    labels: list[int]
    classes: int = 2


def masked_words(sizes: BertSizes, classes: int = 2, *, seed: int = 0) -> Network:
    """Return BERT with the heads of its pretraining, as a network of an embedding and layers.

    Its inputs are (tokens, segments, mask, places), its labels a row a text: the words to restore,
    then the text's class. Texts are single: what one is tuned on later are single sentences, too.
    """
    embedding, *layers, heads = bert(sizes, classes=classes, seed=seed)
    halves = [half for layer in layers for half in layer]
    return Network([embedding, *halves, heads], sizes.layers, _loss, seed=seed)


def masked_examples(
    documents: Documents,
    tokenizer: Tokenizer,
    *,
    tokens: int,
    passes: int,
    seed: int,
    labels: Sequence[int] | None = None,
) -> Examples:
    """Return the examples of several passes through the documents, each with words of its own.

    Args:
        labels: the class of each document; None for none.
    """
    labels = [IGNORED] * len(documents) if labels is None else labels
    made = MaskedPairs(documents, tokenizer, tokens, seed, pairs=False, labels=labels)
    epochs = [made.epoch(number) for number in range(passes)]
    *x, words_NM, labels_N = (torch.cat(column) for column in zip(*epochs, strict=True))
    return Examples(tuple(x), torch.cat([words_NM, labels_N[:, None]], dim=1))


def corpus(name: str, sentences: int = 0) -> Corpus:
    """Return the text of some sources, joined by "+" in the name, as in "wikitext+sst2".

    pydocs      docstrings, with the package as their class
    wikitext    the valid and test articles of WikiText-103, without a class
    sst2        SST-2's training sentences, twenty a document, whose classes are kept back
    imdb        IMDb's training reviews, with their polarity as their class

    Args:
        sentences: at most, about, of each; 0 for all.
    Raises:
        ValueError: another name, or two sources whose classes are not the same.
        FileNotFoundError: data that is not here; says how to get it.
    """
    wanted = name.split("+")
    if unknown := [each for each in wanted if each not in SOURCES]:
        raise ValueError(f"data is {name!r}: {unknown[0]!r} is none of {', '.join(SOURCES)}")
    found = [_beginning(SOURCES[each](), sentences) for each in wanted]
    classes = {each.classes for each in found if any(k != IGNORED for k in each.labels)}
    if len(classes) > 1:
        raise ValueError(f"data is {name!r}: its parts have other classes; give one of them")
    documents = [document for each in found for document in each.documents]
    labels = [label for each in found for label in each.labels]
    return Corpus(documents, labels, max(classes, default=2))


def _beginning(found: Corpus, sentences: int) -> Corpus:
    """Return the first documents, up to so many sentences, in steps through all of them.

    Sources are ordered by class: their beginning alone would be of one.
    """
    if not sentences:
        return found
    total = sum(len(document) for document in found.documents)
    rows = range(0, len(found.documents), max(1, total // sentences))
    kept = [(found.documents[row], found.labels[row]) for row in rows]
    return Corpus([d for d, _ in kept], [k for _, k in kept], found.classes)


def _pydocs() -> Corpus:
    texts, labels, _ = pydocs.sentences()
    documents, classes = [], []
    for label in sorted(set(labels)):
        own = _grouped([text for text, its in zip(texts, labels, strict=True) if its == label])
        documents += own
        classes += [label] * len(own)
    return Corpus(documents, classes, len(pydocs.PACKAGES))


def _wikitext() -> Corpus:
    documents = [*wikitext("valid"), *wikitext("test")]
    return Corpus(documents, [IGNORED] * len(documents))


def _sst2() -> Corpus:
    (texts, _), _ = sst2_sentences()
    documents = _grouped(texts)
    return Corpus(documents, [IGNORED] * len(documents))


def _imdb() -> Corpus:
    (texts, labels), _ = imdb_reviews()
    return Corpus([END.split(BREAK.sub(" ", text).strip()) for text in texts], labels)


def _grouped(texts: Sequence[str]) -> Documents:
    return [list(texts[at : at + GROUP]) for at in range(0, len(texts) - GROUP + 1, GROUP)]


SOURCES: dict[str, Callable[[], Corpus]] = {
    "pydocs": _pydocs,
    "wikitext": _wikitext,
    "sst2": _sst2,
    "imdb": _imdb,
}


def _loss(scores: tuple[Tensor, Tensor], y_BM: Tensor) -> Tensor:
    """Return the mean over hidden words plus that over texts with a class, 0 if there are none."""
    words_BMV, classes_BC = scores
    words = F.cross_entropy(words_BMV.flatten(0, 1), y_BM[:, :-1].flatten(), ignore_index=IGNORED)
    label_B = y_BM[:, -1]
    total = F.cross_entropy(classes_BC, label_B, ignore_index=IGNORED, reduction="sum")
    return words + total / (label_B != IGNORED).sum().clamp(min=1)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description="Pretrain a small BERT or ViT.")
    asked.add_argument("plan", choices=PLANS)
    asked.add_argument("--folder", type=Path, required=True)
    asked.add_argument("--ranks", type=int, default=2)
    given = asked.parse_args()
    print(pretrain(PLANS[given.plan], given.folder, ranks=given.ranks))
