"""Questions with answers inside a text, in SQuAD's form: windows, labels, answers, EM and F1.

    [CLS] question [SEP] part of the paragraph [SEP]

A paragraph that is longer than a window is cut into several that overlap; each is a sample with a
number of its own, so stored features of one are never taken for another's.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from alkit.data.wordpiece import CLS, PAD, SEP
from alkit.elastic.examples import Examples
from alkit.elastic.network import Network

__all__ = [
    "Question",
    "Window",
    "answers",
    "examples",
    "exact_match_and_f1",
    "made_up",
    "read_squad",
    "windows",
]

N_BEST, LONGEST = 20, 30  # candidates of each end, tokens of an answer
NAMES = ("ada", "bob", "cleo", "dan", "eve", "finn")
TOWNS = ("rome", "paris", "oslo", "lima", "cairo", "delhi")


class Question(NamedTuple):
    """A question about a paragraph; answers are (text, first character)."""

    id: str
    text: str
    context: str
    answers: tuple[tuple[str, int], ...]
    article: str


@dataclass(frozen=True)
class Window:
    """A part of a paragraph, after its question.

    Attributes:
        question: number of it.
        ids: of the pieces, [CLS] and [SEP] included.
        context: place of the paragraph's first piece in `ids`.
        offsets: of the paragraph's pieces: first character and the one after the last.
        span: places of the answer's first and last piece; (0, 0) if it is not in the window.
    """

    question: int
    ids: tuple[int, ...]
    context: int
    offsets: tuple[tuple[int, int], ...]
    span: tuple[int, int]


def read_squad(path: str | Path) -> list[Question]:
    """Read a file of SQuAD 1.1's form.

    Raises:
        ValueError: it has another form, or an answer that does not stand where it should.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        found = [
            Question(
                str(qa["id"]),
                qa["question"],
                paragraph["context"],
                tuple((a["text"], int(a["answer_start"])) for a in qa["answers"]),
                article.get("title", ""),
            )
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for qa in paragraph["qas"]
        ]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of SQuAD 1.1's form: {error!r}") from error
    for question in found:
        for text, start in question.answers:
            if question.context[start : start + len(text)] != text:
                raise ValueError(
                    f"{path}: the answer {text!r} of question {question.id} does not stand at"
                    f" character {start}"
                )
    return found


def made_up() -> list[Question]:
    """Return made-up questions: somebody lives somewhere, and likes somewhere else."""
    found = []
    for a, name in enumerate(NAMES):
        for b, town in enumerate(TOWNS):
            other = TOWNS[(a + b + 1) % 6]
            text = f"{name} likes {other} in summer, but {name} lives in {town} all year long."
            start = text.index(f"in {town} all") + 3
            asked = f"where does {name} live?"
            found.append(Question(f"{a}-{b}", asked, text, ((town, start),), name))
    return found


def windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    tokens: int = 128,
    stride: int = 48,
    query: int = 32,
) -> list[Window]:
    """Cut all paragraphs.

    Args:
        tokens: of a window; stride: from one window's beginning to the next.
        query: of a question at most.
    Raises:
        ValueError: no room for a paragraph, or a stride that would leave pieces out.
    """
    if tokens - query - 3 < stride or stride < 1:
        raise ValueError(
            f"tokens {tokens}, query {query}, stride {stride}: a window must hold a question and"
            " at least `stride` pieces of its paragraph"
        )
    found: list[Window] = []
    for number, question in enumerate(questions):
        asked = tokenizer.encode(question.text, add_special_tokens=False).ids[:query]
        text = tokenizer.encode(question.context, add_special_tokens=False)
        room = tokens - len(asked) - 3
        for start in _starts(len(text.ids), room, stride):
            ids = [CLS, *asked, SEP, *text.ids[start : start + room], SEP]
            offsets = tuple(text.offsets[start : start + room])
            context = len(asked) + 2
            span = _span(question, offsets, context)
            found.append(Window(number, tuple(ids), context, offsets, span))
    return found


def examples(cut: Sequence[Window], tokens: int) -> Examples:
    """Return the windows as samples; labels are the answers' first and last places."""
    ids = torch.full((len(cut), tokens), PAD)
    segments = torch.zeros_like(ids)
    for row, window in enumerate(cut):
        ids[row, : len(window.ids)] = torch.tensor(window.ids)
        segments[row, window.context : len(window.ids)] = 1
    spans = torch.tensor([window.span for window in cut])
    return Examples((ids, segments, ids != PAD), spans)


def answers(
    network: Network, cut: Sequence[Window], questions: Sequence[Question], tokens: int
) -> dict[str, str]:
    """Return each question's best answer, a piece of its paragraph, over all its windows."""
    data = examples(cut, tokens)
    best: dict[int, tuple[float, str]] = {}
    for rows in torch.arange(len(cut)).split(64):
        for row, own in zip(rows.tolist(), network.predict(data.inputs(rows)), strict=True):
            window = cut[row]
            text = questions[window.question].context
            for score, first, last in _candidates(own, window):
                if score > best.get(window.question, (-float("inf"), ""))[0]:
                    said = text[window.offsets[first][0] : window.offsets[last][1]]
                    best[window.question] = score, said
    return {q.id: best.get(n, (0.0, ""))[1] for n, q in enumerate(questions)}


def exact_match_and_f1(
    said: Mapping[str, str], questions: Iterable[Question]
) -> tuple[float, float]:
    """Return both in percent, the best over a question's answers, as SQuAD's own script does."""
    exact, overlap, count = 0.0, 0.0, 0
    for question in questions:
        own = said.get(question.id, "")
        golds = [text for text, _ in question.answers]
        exact += max(_normal(own) == _normal(gold) for gold in golds)
        overlap += max(_f1(own, gold) for gold in golds)
        count += 1
    return 100 * exact / count, 100 * overlap / count


def _starts(pieces: int, room: int, stride: int) -> Iterator[int]:
    start = 0
    while True:
        yield start
        if start + room >= pieces:
            return
        start += stride


def _span(question: Question, offsets: Sequence[tuple[int, int]], context: int) -> tuple[int, int]:
    """Return the places of the first answer's pieces, if the window has all of it."""
    if not question.answers or not offsets:
        return 0, 0
    text, start = question.answers[0]
    end = start + len(text)
    if start < offsets[0][0] or end > offsets[-1][1]:
        return 0, 0
    first = max(at for at, (low, _) in enumerate(offsets) if low <= start)
    last = min(at for at, (_, high) in enumerate(offsets) if high >= end)
    return context + first, context + last


def _candidates(scores_T2: torch.Tensor, window: Window) -> Iterator[tuple[float, int, int]]:
    """Yield (score, first, last) of likely answers, by number of the paragraph's piece."""
    count = len(window.offsets)
    own = scores_T2[window.context : window.context + count]
    tops = own.topk(min(N_BEST, count), dim=0).indices
    for first in tops[:, 0].tolist():
        for last in tops[:, 1].tolist():
            if first <= last < first + LONGEST:
                yield float(own[first, 0] + own[last, 1]), first, last


def _normal(text: str) -> str:
    """Lower the text, and leave out marks, articles and spare spaces."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _f1(said: str, gold: str) -> float:
    a, b = _normal(said).split(), _normal(gold).split()
    same = sum((Counter(a) & Counter(b)).values())
    if not same:
        return float(a == b)
    precision, recall = same / len(a), same / len(b)
    return 2 * precision * recall / (precision + recall)
