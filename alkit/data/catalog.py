"""What data sets there are, where they may lie, and where their owners publish them.

Archives are read as they are, so a set lies as its official archive, as a part of it with a longer
name (`ag_news_csv_train9995.tgz`), or as the folder that the archive unpacks to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from alkit.data import paths

__all__ = [
    "EMBEDDED",
    "ENTRIES",
    "Entry",
    "Remote",
    "entry",
    "find",
    "how_to_get",
    "look",
    "size_text",
]

EMBEDDED = {
    "digits": "1,797 handwritten digits, 10 classes (scikit-learn)",
    "pydocs": "6,000 sentences of docstrings, 5 classes (installed packages)",
}


@dataclass(frozen=True)
class Remote:
    """Name an official file: its address, size in bytes and published checksum where known.

    A checksum is "md5:..." or "sha256:...", of the whole file.
    """

    url: str
    size: int | None = None
    checksum: str = ""

    @property
    def file(self) -> str:
        """Return the name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Entry:
    """Describe a set.

    Args:
        archives: patterns of file names, the official ones first.
        whole: how many of the patterns mean the whole set; a match of a later one is a part.
        folders: names of unpacked folders; "." is the folder of the set itself.
        marker: what a folder must hold to be the set.
        near: further folders to look in, besides the top one and one of the set's name.
        unpack: whether fetching unpacks it (many small files are slow to read from a tar).
        how: how to come by it where no address is known.
    """

    name: str
    what: str
    archives: tuple[str, ...]
    folders: tuple[str, ...]
    marker: str
    near: tuple[str, ...] = ()
    whole: int = 1
    remotes: tuple[Remote, ...] = ()
    unpack: bool = False
    how: str = ""
    vectors: bool = False

    @property
    def size(self) -> int | None:
        """Return the bytes to fetch, None where they are not known."""
        sizes = [remote.size for remote in self.remotes]
        return sum(sizes) if sizes and None not in sizes else None  # type: ignore[arg-type]

    @property
    def home(self) -> Path:
        """Return the folder that a fetched set goes to."""
        return paths.glove_dir() if self.vectors else paths.data_dir() / self.name


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_SVHN = "https://ufldl.stanford.edu/housenumbers"
_ZHANG = "https://s3.amazonaws.com/fast-ai-nlp"  # a copy; the author's is behind a web page
_BANKING = "https://raw.githubusercontent.com/PolyAI-LDN/task-specific-datasets/master/banking_data"

_ALL = (
    Entry(
        "tiny_imagenet", "tiny ImageNet, 200 classes",
        ("tiny-imagenet-200.zip", "tiny-imagenet-200*.zip"), ("tiny-imagenet-200", "."),
        "wnids.txt", ("tiny-imagenet",),
        remotes=(
            Remote(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip", 248_100_043,
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
    ),
    Entry(
        "cifar10", "CIFAR-10", ("cifar-10-python.tar.gz", "cifar-10-python*.tar.gz"),
        ("cifar-10-batches-py", "."), "test_batch",
        remotes=(
            Remote(
                f"{_TORONTO}/cifar-10-python.tar.gz", 170_498_071,
                "md5:c58f30108f718f92721af3b95e74349a",
            ),
        ),
    ),
    Entry(
        "cifar100", "CIFAR-100", ("cifar-100-python.tar.gz", "cifar-100-python*.tar.gz"),
        ("cifar-100-python", "."), "test",
        remotes=(
            Remote(
                f"{_TORONTO}/cifar-100-python.tar.gz", 169_001_437,
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
            ),
        ),
    ),
    Entry(
        "mnist", "MNIST, handwritten digits", (), ("raw", "."), "train-images-idx3-ubyte.gz",
        near=("MNIST",),
        remotes=tuple(
            Remote(f"{_MNIST}/{name}-ubyte.gz", size, f"md5:{checksum}")
            for name, size, checksum in (
                ("train-images-idx3", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                ("train-labels-idx1", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                ("t10k-images-idx3", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                ("t10k-labels-idx1", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
            )
        ),
    ),
    Entry(
        "fashion_mnist", "Fashion-MNIST, clothes", (), ("raw", "."), "train-images-idx3-ubyte.gz",
        near=("FashionMNIST",),
        remotes=tuple(
            Remote(f"{_FASHION}/{name}-ubyte.gz", size, f"md5:{checksum}")
            for name, size, checksum in (
                ("train-images-idx3", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                ("train-labels-idx1", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                ("t10k-images-idx3", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                ("t10k-labels-idx1", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
            )
        ),
    ),
    Entry(
        "imagenet32", "ImageNet at 32 x 32, 1,000 classes", (), ("out_data_train", "."),
        "train_data_batch_1",
        how="put the files of Imagenet32_train.zip and Imagenet32_val.zip, which image-net.org"
        " gives after a login, into data/imagenet32/",
    ),
    Entry(
        "svhn", "SVHN, cropped digits", (), (".",), "train_32x32.mat",
        remotes=(
            Remote(f"{_SVHN}/train_32x32.mat", 182_040_794, "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
            Remote(f"{_SVHN}/test_32x32.mat", 64_275_384, "md5:eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    Entry(
        "ag_news", "AG News, 4 classes", ("ag_news_csv.tgz", "ag_news_csv*.t*gz"),
        ("ag_news_csv", "."), "train.csv",
        remotes=(Remote(f"{_ZHANG}/ag_news_csv.tgz", 11_784_419),),
    ),
    Entry(
        "dbpedia", "DBpedia-14", ("dbpedia_csv.tgz", "dbpedia_csv*.t*gz"),
        ("dbpedia_csv", "."), "train.csv",
        remotes=(Remote(f"{_ZHANG}/dbpedia_csv.tgz", 68_341_743),),
    ),
    Entry(
        "imdb", "IMDb reviews, 2 classes",
        ("aclImdb_v1.tar.gz", "IMDB Dataset.csv", "IMDB Dataset.csv.zip", "IMDB*Dataset*"),
        ("aclImdb",), "train/pos", whole=3,
        remotes=(
            Remote(
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", 84_125_825,
                "md5:7c2ac02c03563afcf9b574c7e56c153a",
            ),
        ),
        unpack=True,
    ),
    Entry(
        "sst2", "GLUE SST-2", ("SST-2.zip", "SST-2*.zip"), ("SST-2", "."), "train.tsv", ("glue",),
        remotes=(
            Remote(
                "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip", 7_439_277,
                "md5:9f81648d4199384278b86e315dac217c",
            ),
        ),
    ),
    Entry(
        "wikitext", "WikiText-103, running text",
        ("wikitext-103-v1.zip", "wikitext-103*.zip"), ("wikitext-103", "."), "wiki.valid.tokens",
        how="put the official wikitext-103-v1.zip into data/wikitext/",
    ),
    Entry(
        "banking77", "Banking77, 77 intents", (), (".",), "train.csv",
        remotes=(Remote(f"{_BANKING}/train.csv"), Remote(f"{_BANKING}/test.csv")),
    ),
    Entry(
        "emotion", "emotion of tweets, 6 classes", (), (".",), "train.csv",
        how="put emotion/train.csv and emotion/test.csv (header text,label) into data/",
    ),
    Entry(
        "rotten_tomatoes", "film reviews, 2 classes", (), (".",), "train.csv",
        how="put rotten_tomatoes/train.csv and rotten_tomatoes/test.csv (header text,label)"
        " into data/",
    ),
    Entry(
        "yelp", "Yelp reviews, 5 classes",
        ("yelp_review_full_csv.tgz", "yelp_review_full_csv*.t*gz"), ("yelp_review_full_csv", "."),
        "train.csv", remotes=(Remote(f"{_ZHANG}/yelp_review_full_csv.tgz", 196_146_755),),
    ),
    Entry(
        "glove.6B", "GloVe word vectors, 50 to 300 numbers",
        ("glove.6B.zip", "glove.6B*.zip", "glove.6B.*d.txt"), (), "",
        remotes=(
            Remote(
                "https://nlp.stanford.edu/data/glove.6B.zip", 862_182_613,
                "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
            ),
        ),
        vectors=True,
    ),
)  # fmt: skip

ENTRIES = {entry.name: entry for entry in _ALL}


def entry(name: str) -> Entry:
    """Return the entry of that name.

    Raises:
        ValueError: there is none, or the set comes with the packages.
    """
    if name in EMBEDDED:
        raise ValueError(f"{name} comes with the packages; there is nothing to fetch")
    if name not in ENTRIES:
        raise ValueError(f"no data set {name!r}; there are {', '.join(sorted(ENTRIES))}")
    return ENTRIES[name]


def find(name: str) -> Path:
    """Return where a set lies: a whole one before a part, `ALKIT_DATA` before `data/`.

    Raises:
        FileNotFoundError: it is nowhere; says where was looked and how to get it.
    """
    found = look(name)[1]
    if found is not None:
        return found
    wanted = entry(name)
    forms = [*wanted.archives, *(f"{f}/{wanted.marker}" for f in wanted.folders)]
    looked = ", ".join(str(folder) for folder in _folders(wanted))
    raise FileNotFoundError(
        f"{name} is not here: looked in {looked} for {', '.join(forms)}; {how_to_get(name)}"
    )


def look(name: str) -> tuple[str, Path | None]:
    """Return "here", "part" or "missing", and where the set lies."""
    wanted = entry(name)
    for path in _matches(wanted, wanted.archives[: wanted.whole], wanted.folders):
        return "here", path
    for path in _matches(wanted, wanted.archives[wanted.whole :], ()):
        return "part", path
    return "missing", None


def how_to_get(name: str) -> str:
    """Say what to do to have the set."""
    wanted = entry(name)
    if not wanted.remotes:
        return wanted.how
    size = f" ({size_text(wanted.size)})" if wanted.size else ""
    return f"`alkit data get {name}` fetches it{size}"


def size_text(size: int | None) -> str:
    """Return a number of bytes in MiB, nothing for None."""
    return "" if size is None else f"{size / 2**20:.0f} MiB"


def _folders(wanted: Entry) -> list[Path]:
    """Return the folders to look in, in the order in which they count."""
    shared = paths.shared_data_dir()
    if wanted.vectors:
        return [paths.glove_dir(), shared / "glove", shared]
    bases = dict.fromkeys([shared, paths.data_dir()])
    return [base / near for base in bases for near in ("", wanted.name, *wanted.near)]


def _matches(wanted: Entry, patterns: tuple[str, ...], folders: tuple[str, ...]) -> Iterator[Path]:
    for base in _folders(wanted):
        # the top folder is no set by itself: its train.csv could be anything's
        names = [f for f in folders if f != "." or base.name in (wanted.name, *wanted.near)]
        yield from (base / name for name in names if (base / name / wanted.marker).exists())
        for pattern in patterns:
            yield from (
                path
                for path in sorted(base.glob(pattern))
                if path.is_file() and not path.name.endswith(".partial")
            )
