"""Sentences of docstrings: the extraction on made files, the data set on the installed packages."""

import importlib.metadata
from collections import Counter
from pathlib import Path

import pytest
import torch

from alkit.data import paths, pydocs
from alkit.data.datasets import stratified_split
from alkit.data.text import clean

# What the frozen list gives with the versions of environment.yml.
PINNED = {
    "numpy": "2.4.6",
    "pandas": "3.1.1",
    "scikit-learn": "1.9.1",
    "scipy": "1.17.1",
    "torch": "2.14.1",
}
GOLDEN = "4cd4fb165e576313e8292f2e139060699fd237b659dc632206b57b4f0f9a8d8f"

LONG = "one two three four five six seven eight nine ten"


def versions_are_pinned() -> bool:
    return all(importlib.metadata.version(p).split("+")[0] == v for p, v in PINNED.items())


needs_pins = pytest.mark.skipif(
    not versions_are_pinned(), reason="the packages are not those of environment.yml"
)


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def real(data_folder, monkeypatch):
    """Use the installed packages; the first test prepares, the others read what it kept."""
    monkeypatch.setattr(paths, "data_dir", lambda: data_folder)


def write_module(folder: Path, package: str, sentences: list[str]) -> None:
    path = folder / package / "made.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    functions = [f'def f{i}():\n    """{s}"""\n' for i, s in enumerate(sentences)]
    path.write_text("raise RuntimeError('imported')\n" + "".join(functions), encoding="utf-8")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Put five made packages of four sentences each in the place of the installed ones."""
    ordinals = ("first", "second", "third", "fourth")
    for package in pydocs.PACKAGES:
        own = [f"The {o} {LONG} of p{package[1:]}." for o in ordinals]
        write_module(tmp_path, package, own)
    monkeypatch.setattr(pydocs, "_folder", lambda package: tmp_path / package)
    monkeypatch.setattr(pydocs, "_modules", lambda: [(p, "made.py") for p in pydocs.PACKAGES])
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path / "data")
    return tmp_path


DOCSTRING = '''
def function():
    """Return :func:`the values <numpy.array>` of an ``array`` which are not equal to zero [1]_.

    NumPy arrays and np.ndarray views are read here; see https://example.org/a for the rest of it.
    This sentence is too short. A sentence of text may go on over the end of
    one line, e.g. This one, and it ends here.

    Parameters
    ----------
    x : array_like, optional, which is a heading of a list and has a full stop.
        The description of a parameter is a sentence like each other one here.
    y (int): the description of an argument in the other style is kept as well.

    .. note::
        A sentence inside of the block of a directive is left out as a whole here.

    An example follows, and what stands inside the block of code is left out::

        this_is = code that looks like a sentence of more than ten words in all.

    >>> print("this is a doctest and it is left out together with its output here.")
    The output of a doctest looks like a sentence but it is not one at all.

    ===== ===== ===========================================================
    a     b     a row of a table is not prose, whatever number of words it has.
    ===== ===== ===========================================================

    | a | row of a table with bars is not prose whatever number of words | it has. |

    * An item of a list starts a paragraph of its own
      which may go on over the next line of it.
    """
'''


def test_extraction_keeps_prose_only_wherever_it_stands():
    nested = f'"""A {LONG}."""\nclass C:\n    async def f(self):\n        "B \\d {LONG}."\n'
    assert list(pydocs._module_sentences(nested)) == [f"A {LONG}.", f"B \\d {LONG}."]
    assert list(pydocs._module_sentences(DOCSTRING)) == [
        "Return the values of an array which are not equal to zero.",
        "arrays and ndarray views are read here; see for the rest of it.",
        "A sentence of text may go on over the end of one line, e.g. This one, and it ends here.",
        "The description of a parameter is a sentence like each other one here.",
        "the description of an argument in the other style is kept as well.",
        "An item of a list starts a paragraph of its own which may go on over the next line of it.",
    ]


SENTENCES = {
    f"A {LONG}.": True,
    " ".join(["word"] * 40) + ".": True,
    " ".join(["word"] * 41) + ".": False,
    "one two three four five six seven eight nine.": False,
    f"A {LONG}": False,
    f"1 {LONG}.": False,
    f"A {LONG} 1 2.": True,
    f"A {LONG} 1 2 3.": False,
}
PLAIN = {
    "a pd.Series or a numpy.ndarray": "a Series or a ndarray",
    "scikit-learn, SciPy and PyTorch.": ", and.",
    "the __torch_function__ protocol": "the protocol",
    "an input of the updated torchvision model": "an input of the updated model",
}


def test_what_a_sentence_is_and_names_of_packages_are_cut_out():
    assert {text: pydocs._is_sentence(text) for text in SENTENCES} == SENTENCES
    assert {text: pydocs._plain(text) for text in PLAIN} == PLAIN


def test_sentences_are_balanced_and_ordered_by_hash_without_running_modules(made):
    texts, labels, digest = pydocs.sentences(per_class=3)
    assert labels == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert len(set(texts)) == 15
    everything, _, other_digest = pydocs.sentences(per_class=4)
    assert [everything[4 * k + i] for k in range(5) for i in range(3)] == texts
    assert len(digest) == 64
    assert digest != other_digest


def test_sentences_of_two_packages_and_repetitions_are_left_out(made):
    shared = f"Shared {LONG}."
    own = [f"{word} {LONG}." for word in ("Alpha", "Beta")]
    write_module(made, "numpy", [shared, own[0], own[1], own[0].upper()])
    write_module(made, "torch", [shared.lower(), f"Gamma {LONG}.", f"Delta {LONG}."])
    texts, _, _ = pydocs.sentences(per_class=2)
    assert sorted(texts[:2]) == own
    with pytest.raises(ValueError, match="numpy holds 2 sentences, per_class asks 3"):
        pydocs.sentences(per_class=3)


def test_a_missing_module_changes_the_hash_and_is_told(made, monkeypatch):
    texts, _, digest = pydocs.sentences(per_class=4)
    listed = [(package, "made.py") for package in pydocs.PACKAGES]
    monkeypatch.setattr(pydocs, "_modules", lambda: [*listed, ("torch", "gone.py")])
    same_texts, _, other_digest = pydocs.sentences(per_class=4)
    assert same_texts == texts
    assert other_digest != digest
    described = pydocs.load_pydocs(per_class=4).describe()
    assert described.endswith(f"sha256 {other_digest[:12]}; 1 of 6 listed modules missing")


def cache_files(folder: Path) -> list[Path]:
    return sorted((folder / "data" / "pydocs").iterdir())


def test_prepared_sentences_are_kept_and_read_again(made, monkeypatch):
    first = pydocs.sentences(per_class=2)
    assert [path.suffix for path in cache_files(made)] == [".json"]
    with monkeypatch.context() as patch:
        patch.delattr(pydocs, "_build")
        assert pydocs.sentences(per_class=2) == first
    write_module(made, "torch", [f"Changed {word} {LONG}." for word in ("a", "b")])
    assert pydocs.sentences(per_class=2)[2] != first[2]


@pytest.mark.parametrize(
    "damage",
    ["", "{}", "[1]", "null", '{"texts": ["x"], "labels": [0], "missing": []}', "\0", "a word"],
)
def test_a_damaged_cache_is_rebuilt(made, damage):
    first = pydocs.sentences(per_class=2)
    (path,) = cache_files(made)
    whole = path.read_text()
    path.write_text(whole.replace("three", "eerht", 1) if damage == "a word" else damage)
    assert pydocs.sentences(per_class=2) == first
    assert path.read_text() == whole


def test_a_cache_that_cannot_be_written_is_no_error(made, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse)
        first = pydocs.sentences(per_class=2)
    assert cache_files(made) == []  # and nothing is left behind
    (made / "file").touch()
    monkeypatch.setattr(paths, "data_dir", lambda: made / "file")
    assert pydocs.sentences(per_class=2) == first


def refuse(*_: object) -> None:
    raise OSError("disk full")


def test_wrong_sizes_and_missing_packages_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="per_class must be at least 1, got 0"):
        pydocs.sentences(per_class=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="docstrings of numpy; please install it"):
        pydocs.sentences()


def test_the_list_of_modules_is_sorted_and_holds_no_tests():
    modules = pydocs._modules()
    assert modules == sorted(set(modules))
    assert Counter(package for package, _ in modules) == dict.fromkeys(pydocs.PACKAGES, 60)
    for _, inside in modules:
        assert not {"tests", "testing", "externals", "_vendor", "distutils"} & set(
            inside.split("/")
        )
        assert inside.endswith(".py")


@needs_pins
@pytest.mark.usefixtures("real")
def test_the_installed_packages_give_the_frozen_sentences():
    texts, labels, digest = pydocs.sentences()
    assert digest == GOLDEN
    assert Counter(labels) == dict.fromkeys(range(5), 1200)
    assert all(10 <= len(text.split()) <= 40 for text in texts)


@pytest.mark.usefixtures("real")
def test_no_sentence_names_a_package_or_occurs_twice():
    words = [clean(text) for text in pydocs.sentences()[0]]
    names = {"numpy", "np", "pandas", "pd", "sklearn", "scikit", "scipy", "torch", "pytorch"}
    assert not names & {word for text in words for word in text}
    assert len({tuple(text) for text in words}) == len(words)


@pytest.fixture
def data(real):
    return pydocs.load_pydocs()


def test_the_data_set_has_its_sizes_and_the_vocabulary_of_its_training_part(data):
    assert data.describe().startswith(
        "pydocs: 3600 train, 1200 validation, 1200 test; 5 classes;"
        " texts of up to 40 tokens; vocabulary 5000; sha256 "
    )
    for part, share in ((data.train, 720), (data.validation, 240), (data.test, 240)):
        assert part.y.bincount().tolist() == [share] * 5
        assert (part.x != 0).any(dim=1).all()
    texts, labels, _ = pydocs.sentences()
    rows = stratified_split(torch.tensor(labels), seed=0)
    counts = Counter(word for row in rows[0].tolist() for word in clean(texts[row]))
    by_rank = sorted(counts, key=lambda word: (-counts[word], word))
    assert data.vocabulary is not None
    assert data.vocabulary.words[2:] == by_rank[:4998]
    decoded = [data.vocabulary.words[i] for i in data.test.x[0].tolist() if i]
    expected = [w if w in by_rank[:4998] else "<unk>" for w in clean(texts[int(rows[2][0])])]
    assert decoded == expected[:40]
    assert data.test.y[0] == labels[int(rows[2][0])]


@pytest.mark.usefixtures("real")
def test_the_data_set_is_a_function_of_seed_and_options(data):
    assert torch.equal(pydocs.load_pydocs(seed=0).train.x, data.train.x)
    assert torch.equal(pydocs.load_pydocs(seed=1).train.y, data.train.y)  # in order of classes
    other = pydocs.load_pydocs(seed=1).train.x[:, :5]
    assert not torch.equal(other, data.train.x[:, :5])
    small = pydocs.load_pydocs(max_size=100, max_len=7)
    assert small.train.x.shape == (3600, 7)
    assert int(small.train.x.max()) == 99
