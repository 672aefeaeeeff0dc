"""Embedded English text: sentences of docstrings of installed packages, label = package.

Source files are read as text; no submodule is imported, for importing them has side effects. The
modules are listed in `pydocs_modules.txt`, whose header says how they were chosen.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from alkit.data import paths
from alkit.data.files import replacing
from alkit.data.parts import DataSet, Part, stratified_split
from alkit.data.text import Vocabulary, clean, encode

__all__ = ["PACKAGES", "load_pydocs", "sentences"]

PACKAGES = ("numpy", "pandas", "sklearn", "scipy", "torch")
_DISTRIBUTIONS = {"sklearn": "scikit-learn"}

# What a docstring holds besides prose; each pattern is matched against one line.
_DIRECTIVE = re.compile(r"\s*\.\. ")
_FIELD_HEAD = re.compile(r"\s*[*`\w., {}'\"]+ : ")  # `name : type` of a list of parameters
_NOT_PROSE = re.compile(r"\s*([-=~^*#\"'`+]{3,}|[-=+| ]{3,})$|.*\|.*\||\s*:[\w ]+:\s*$")
_DOCTEST_OR_TABLE = re.compile(r"\s*(>>>|[=-]{2,}(\s+[=-]{2,})+\s*$)")
# Starts of a paragraph; the marker itself is dropped.
_ITEM = re.compile(
    r"\s*([-*+•]|\(?[0-9a-z]{1,2}[.)]|:[\w ]+:|\*{0,2}\w+\*{0,2}(\s*\([^)]*\))?:)\s+"
)

# Mark-up inside a sentence and what remains of it.
_INLINE = (
    (re.compile(r":[\w+-]+(?::[\w+-]+)*:(?=`)"), ""),  # :func:`x` -> `x`
    (re.compile(r"`([^`<]*\S)\s*<[^`>]*>`_*"), r"\1"),  # `text <target>`_ -> text
    (re.compile(r"<?\b(?:https?|ftp)://\S+|\bwww\.\S+"), ""),
    (re.compile(r"\s*\[[\w, -]+\]_"), ""),  # footnotes
    (re.compile(r"[`*|]+_*|~(?=\w)"), ""),
)
_GIVE_AWAY = re.compile(
    r"(?<![\w-])[\w-]*(?:numpy|pandas|sklearn|scikit|scipy|torch)[\w-]*(?:\.(?=\w))?"
    r"|(?<![^\W_])(?:np|pd)(?![^\W_])(?:\.(?=\w))?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!\bal\.)(?<!\bcf\.)\s+(?=[A-Z])")
_WORD = re.compile(r"[\"'(]*[A-Za-z]+(?:['-][A-Za-z]+)*[\"')]*[.,;:!?]?[\"')]*")


class _Prepared(NamedTuple):
    texts: list[str]
    labels: list[int]
    missing: list[str]

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()


def sentences(per_class: int = 1200) -> tuple[list[str], list[int], str]:
    """Return sentences, labels (numbers in `PACKAGES`) and the SHA-256 of both.

    Each package gives the same number, chosen and ordered by the hash of the sentence; a sentence
    of two packages is left out, names of the packages are cut out. Modules of the list that the
    installed version lacks are skipped; they enter the hash and `DataSet.describe()` counts them.
    Prepared sentences are kept under `data/pydocs` if that can be written; preparing takes seconds.

    Raises:
        ValueError: `per_class` below 1, or above what some package holds.
        ModuleNotFoundError: one of the packages is not installed.
    """
    prepared = _prepare(per_class)
    return prepared.texts, prepared.labels, prepared.digest()


def load_pydocs(
    *, seed: int = 0, per_class: int = 1200, max_size: int = 5000, max_len: int = 40
) -> DataSet:
    """Load the sentences as a data set, split 60/20/20 class by class by the seed alone.

    Args:
        max_size: the most rows of the vocabulary, which is built from the training part.
        max_len: the most words kept of a sentence.
    Raises: what `sentences`, `Vocabulary` and `encode` raise.
    """
    prepared = _prepare(per_class)
    y_N = torch.tensor(prepared.labels)
    rows = stratified_split(y_N, seed=seed)
    words = [clean(text) for text in prepared.texts]
    vocabulary = Vocabulary((words[row] for row in rows[0].tolist()), max_size=max_size)
    x_NT = encode(words, vocabulary, max_len)
    train, validation, test = (
        Part(x_NT[part], y_N[part], len(PACKAGES), pad=vocabulary.pad) for part in rows
    )
    note = f"sha256 {prepared.digest()[:12]}"
    if prepared.missing:
        note += f"; {len(prepared.missing)} of {len(_modules())} listed modules missing"
    return DataSet("pydocs", train, validation, test, len(PACKAGES), PACKAGES, vocabulary, note)


def _prepare(per_class: int) -> _Prepared:
    """Read the prepared sentences from `data/pydocs`, or prepare and keep them there."""
    if per_class < 1:
        raise ValueError(f"per_class must be at least 1, got {per_class}")
    cache = paths.data_dir() / "pydocs" / f"{_fingerprint(per_class)}.json"
    prepared = _read_cache(cache)
    if prepared is None:
        prepared = _build(per_class)
        _write_cache(cache, prepared)
    return prepared


def _build(per_class: int) -> _Prepared:
    pools, missing = _pools()
    texts, labels = [], []
    for label, package in enumerate(PACKAGES):
        pool = pools[package]
        if len(pool) < per_class:
            raise ValueError(f"{package} holds {len(pool)} sentences, per_class asks {per_class}")
        chosen = sorted(pool, key=lambda key: hashlib.sha256(key.encode()).digest())[:per_class]
        texts += [pool[key] for key in chosen]
        labels += [label] * per_class
    return _Prepared(texts, labels, missing)


def _pools() -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return each package's own sentences by their cleaned words, and the modules not found."""
    pools: dict[str, dict[str, str]] = {package: {} for package in PACKAGES}
    owners: dict[str, set[str]] = defaultdict(set)
    missing = []
    for package, inside in _modules():
        path = _folder(package) / inside
        if not path.is_file():
            missing.append(f"{package} {inside}")
            continue
        for sentence in _module_sentences(path.read_text(encoding="utf-8")):
            key = " ".join(clean(sentence))
            owners[key].add(package)
            pools[package].setdefault(key, sentence)
    for pool in pools.values():
        for key in [key for key in pool if len(owners[key]) > 1]:
            del pool[key]
    return pools, missing


def _modules() -> list[tuple[str, str]]:
    """Read the list of source modules: package and path inside it."""
    lines = Path(__file__).with_name("pydocs_modules.txt").read_text(encoding="utf-8").splitlines()
    entries = (line.split() for line in lines if line and not line.startswith("#"))
    return [(package, inside) for package, inside in entries]


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"pydocs reads the docstrings of {package}; please install it: pip install alkit[text]"
        )
    return Path(spec.submodule_search_locations[0])


def _module_sentences(source: str) -> Iterator[str]:
    """Yield the sentences of all docstrings of a module."""
    for docstring in _docstrings(source):
        for paragraph in _paragraphs(docstring):
            for sentence in _SENTENCE_END.split(_plain(paragraph)):
                if _is_sentence(sentence):
                    yield sentence


def _docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, of its classes and functions, and of those inside them."""
    with warnings.catch_warnings():
        # escapes such as "\d" in other people's sources
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", SyntaxWarning)
        nodes: list[Any] = [ast.parse(source)]
    owners = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in nodes:  # the list grows while it is read: the outer definitions come first
        yield ast.get_docstring(node) or ""
        nodes += [child for child in node.body if isinstance(child, owners)]


def _prose_lines(docstring: str) -> Iterator[str]:
    """Yield the lines of prose; an empty line stands for each thing left out."""
    block: int | None = None  # indentation of the directive or code block that is being skipped
    skip = False  # inside a doctest or a table, which end at an empty line
    for line in docstring.expandtabs().splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            skip = False
        elif block is not None and indent > block:
            continue
        else:
            directive = bool(_DIRECTIVE.match(line))
            block = indent if directive or line.rstrip().endswith("::") else None
            skip = skip or bool(_DOCTEST_OR_TABLE.match(line))
            if not (directive or skip or _NOT_PROSE.match(line) or _FIELD_HEAD.match(line)):
                yield line
                continue
        yield ""


def _paragraphs(docstring: str) -> Iterator[str]:
    """Join lines; an empty line, a list item or another indentation starts a new paragraph."""
    lines: list[str] = []
    indent: int | None = None
    for line in (*_prose_lines(docstring), ""):
        item = _ITEM.match(line)
        here = len(line) - len(line.lstrip())
        if not line or item or (indent is not None and here != indent):
            yield " ".join(lines)
            lines = []
        # the lines after an item's first may be indented as they like
        indent = None if item or not line else here
        lines.append(line[item.end() :].strip() if item else line.strip())
    yield " ".join(lines)


def _plain(paragraph: str) -> str:
    """Take mark-up and the names of the packages out of a paragraph."""
    for pattern, rest in _INLINE:
        paragraph = pattern.sub(rest, paragraph)
    paragraph = re.sub(r"\s+([.,;:!?])(?=\s|$)", r"\1", _GIVE_AWAY.sub("", paragraph))
    return " ".join(paragraph.split())


def _is_sentence(text: str) -> bool:
    """Say whether a text ends like a sentence and is 10 to 40 words, five in six alphabetic."""
    words = text.split()
    if not 10 <= len(words) <= 40 or not words[0][0].isalpha() or text[-1] not in ".!?":
        return False
    return 6 * sum(_WORD.fullmatch(word) is not None for word in words) >= 5 * len(words)


def _fingerprint(per_class: int) -> str:
    """Hash all that the prepared sentences depend on, without reading the sources."""
    folders = {package: _folder(package) for package in PACKAGES}
    files = [folders[package] / inside for package, inside in _modules()]
    inputs = {
        "per_class": per_class,
        "rules": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "versions": [importlib.metadata.version(_DISTRIBUTIONS.get(p, p)) for p in PACKAGES],
        "modules": _modules(),
        "sizes": [file.stat().st_size if file.is_file() else -1 for file in files],
    }
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]


def _read_cache(path: Path) -> _Prepared | None:
    """Return what the file holds, or None where it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        prepared = _Prepared(content["texts"], content["labels"], content["missing"])
        return prepared if prepared.digest() == content["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cache(path: Path, prepared: _Prepared) -> None:
    """Write the file whole or not at all; a folder that cannot be written is no error."""
    with contextlib.suppress(OSError):
        content = prepared._asdict() | {"sha256": prepared.digest()}
        with replacing(path) as partial:
            partial.write_text(json.dumps(content), encoding="utf-8")
