"""Programs whose network and samples are their own: named on each command line, never sent."""

import pytest
import torch

import alkit.split
from alkit.records.cli import main
from alkit.split import data, own
from alkit.split.check import Check, fingerprints
from alkit.split.config import ConfigError, read
from tests.unit.split.test_program import CONFIG, LIMIT_S, Run, same

NETWORK = """
import torch
from torch import nn

def make(hidden=16):
    head = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
    return [head, nn.Linear(8, hidden), nn.Sequential(nn.Tanh(), nn.Linear(hidden, 3))]

def wider():
    return make(24)


def normed():
    return [nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), nn.Linear(8, 3)]

def nothing():
    return []

def word():
    return "network"
"""
DATA = """
import torch

def drawn(count, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=draw)
    return x, x[:, :3].argmax(1)

def first():
    return drawn(60, 0)

def second():
    return drawn(60, 1)

def fewer():
    return drawn(44, 1)

def test():
    return drawn(50, 2)

def alone():
    return drawn(60, 0)[0]

def unlike():
    return drawn(60, 0)[0], torch.zeros(59)

def bytes():
    return (drawn(60, 0)[0] * 9).byte(), drawn(60, 0)[1]

def beyond():
    return drawn(60, 0)[0], torch.full((60,), 3)

def narrow():
    x, y = drawn(60, 0)
    return x[:, :5], y
"""
SIZE = "\ndata_size = 60\n"


@pytest.fixture
def files(tmp_path):
    """Return what stands before the name of a function of the network's and the data's file."""
    (tmp_path / "mynet.py").write_text(NETWORK)
    (tmp_path / "mydata.py").write_text(DATA)
    return f"{tmp_path / 'mynet.py'}:", f"{tmp_path / 'mydata.py'}:"


def owned(text):
    assert 'data = "digits"\nmodel = "VGG5"' in text
    return text.replace('data = "digits"\nmodel = "VGG5"', 'data = "own"\nmodel = "own"') + SIZE


class OwnRun(Run):
    """A run of parties with networks and samples of their own."""

    def __init__(self, folder, files, **options):
        super().__init__(folder, **options)
        self.path.write_text(owned(self.path.read_text()))
        self.files = files

    def party(self, who, network, samples, *more):
        own = ["--network", self.files[0] + network, "--data", self.files[1] + samples]
        return self.start(who, *own, *more)

    def __enter__(self):
        self.server = self.party("server", "make", "test")
        return self

    def device(self, index, network="make", samples=None):
        return self.party(
            "device", network, samples or ("first", "second")[index], "--index", index
        )

    def in_process(self):
        """Train the same in one process, from what the functions give."""
        config = read(self.path, network=self.files[0] + "make", samples=self.files[1] + "test")
        given = {}
        exec(DATA, given)
        settings = config.settings(3)
        options = {key: getattr(settings, key) for key in ("epochs", "batch", "least", "seed")}
        units = own.network(config.network, config.seed)
        parts = [given["first"](), given["second"]()]
        return alkit.split.train(units, parts, cut=2, micro=settings.micros, **options)


def test_their_own_network_and_samples_end_in_the_bits_of_one_process(tmp_path, files):
    with OwnRun(tmp_path, files) as run:
        run.wait(run.server, run.device(0), run.device(1))
        assert same(run.model(), run.in_process().state)
    results = (tmp_path / "out" / "results.csv").read_text()
    assert "test_accuracy" in results


def test_a_device_with_another_network_is_refused_and_may_come_back(tmp_path, files):
    with OwnRun(tmp_path, files, epochs=1) as run:
        zero, one = run.device(0), run.device(1, "wider")
        said = one.communicate(timeout=LIMIT_S)[0]
        assert one.returncode == 1, said
        words = "network of device 1 is another one: unit 1, which is here: weight (16, 8)"
        assert words in said
        assert "Traceback" not in said
        run.wait(run.server, zero, run.device(1))


def refused(tmp_path, files, capsys, network="make", samples="first", text=None):
    """Return what a device says that is refused before it connects."""
    path = tmp_path / "run.toml"
    path.write_text(text or owned(CONFIG.replace("PORT", "50000").replace("EPOCHS", "1")))
    words = ["split", "device", "--config", str(path), "--index", "0", "--quiet"]
    words += ["--network", network if ":" in network else files[0] + network] if network else []
    words += ["--data", samples if ":" in samples else files[1] + samples] if samples else []
    assert main(words) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"network": ""}, 'model is "own": name yours, --network FILE.py:FUNCTION'),
        ({"samples": ""}, 'data is "own": name yours, --data FILE.py:FUNCTION'),
        ({"network": "nowhere.py:make"}, "--network: there is no file"),
        ({"network": "mynet.py:"}, "write FILE.py:FUNCTION or package.module:function"),
        ({"network": "nowhere.mine:make"}, "Python finds no module nowhere"),
        ({"network": "json:make"}, "json has no function make (there is: "),
        ({"network": "mak"}, "has no function mak (there is: make, wider, "),
        ({"network": "nothing"}, "gives no blocks: there are no blocks"),
        ({"network": "word"}, "gives no blocks: block 0 must be a module"),
        ({"network": "normed"}, 'has BatchNorm: write norm = "batch"'),
        ({"samples": "alone"}, "return two tensors, (x, y)"),
        ({"samples": "unlike"}, "60 samples of torch.float32 and 59 labels"),
        ({"samples": "bytes"}, "and x as floats"),
        ({"samples": "beyond"}, "label 0 is 3; labels are integers from 0 to 2"),
        ({"samples": "narrow"}, "unit 0 does not take (1, 5)"),
        ({"samples": "fewer"}, "44 samples, and data_size is 60"),
    ],
)
def test_what_is_no_network_and_no_samples(tmp_path, files, capsys, given, words):
    said = refused(tmp_path, files, capsys, **given)
    assert words in said
    assert len(said.splitlines()) <= 2


MODEL, SET = 'model = "own"', 'data = "own"'


@pytest.mark.parametrize(
    ("old", "new", "network", "words"),
    [
        (MODEL, 'model = "VGG5"', "make", "--network is for model = \"own\"; it is 'VGG5'"),
        (MODEL, 'model = "VGG5"', "", "so the network must be"),
        (SET, 'data = "digits"', "make", "--data is for data = \"own\"; it is 'digits'"),
        (SET, SET + '\nnetwork = "a.py:b"', "make", "no key 'network'"),
        (SET, SET + "\nvalidate = true", "make", "leave out validate"),
        ("data_size = 60", "", "make", "give the number of samples of a device"),
    ],
)
def test_a_file_that_says_otherwise(tmp_path, files, capsys, old, new, network, words):
    text = owned(CONFIG.replace("PORT", "50000").replace("EPOCHS", "1")).replace(old, new)
    assert words in refused(tmp_path, files, capsys, network=network, text=text)


def test_an_own_network_on_a_set_that_all_have(tmp_path, files):
    path = tmp_path / "run.toml"
    path.write_text('data = "digits"\nmodel = "own"\nnorm = "group"\nplain = true\n')
    (tmp_path / "flat.py").write_text(
        "from torch import nn\n"
        "def make():\n    return [nn.Sequential(nn.Flatten(), nn.Linear(64, 10))]\n"
    )
    config = read(path, network=f"{tmp_path / 'flat.py'}:make")
    first, second = data.network(config), data.network(config)
    assert torch.equal(first[0][1].weight, second[0][1].weight)  # by the seed
    assert first[0][1] is not second[0][1]
    assert Check(first, data.example(config)).classes == 10
    assert config.digest == read(path, network="other.py:make").digest  # never told
    with pytest.raises(ConfigError, match="name yours"):
        read(path)


def test_fingerprints_are_of_names_shapes_and_types():
    def linear(width=3, bias=True, dtype=torch.float32):
        return [torch.nn.Linear(4, width, bias=bias, dtype=dtype), torch.nn.ReLU()]

    first = fingerprints(linear())
    assert fingerprints(linear()) == first
    for other in (linear(4), linear(bias=False), linear(dtype=torch.float64)):
        assert fingerprints(other)[0] != first[0]
        assert fingerprints(other)[1] == first[1]
    assert not Check(linear(), torch.zeros(1, 4)).differs(first)
    shorter = Check(linear(), torch.zeros(1, 4)).differs(first[:1])
    assert shorter == "it has 1 units; here are 2"
    said = Check(linear(5), torch.zeros(1, 4)).differs(first)
    assert said == "unit 0, which is here: weight (5, 4) torch.float32, bias (5,) torch.float32"


def test_a_function_that_gives_the_same_modules_each_time(tmp_path):
    """What is trained is a copy: the next one begins with the first weights again."""
    file = tmp_path / "kept.py"
    file.write_text(
        "from torch import nn\nkept = [nn.Linear(6, 8), nn.Linear(8, 3)]\n"
        "def make():\n    return kept\n"
    )
    first, second = (own.network(f"{file}:make", 0) for _ in range(2))
    with torch.no_grad():
        first[0].weight.zero_()
    assert second[0].weight.abs().sum() > 0
