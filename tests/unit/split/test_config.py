"""Configurations: our keys and the published ones, and what is refused."""

import pytest

from alkit.split.published import read
from alkit.split.settings import Config, Settings

PUBLISHED = """{
    "experiment_name": "test", "server_address": "127.0.0.1", "port": 50000, "client_num": 4,
    "dataset_name": "CIFAR-10", "model_name": "VGG5", "data_size": 10000, "test_data_size": 10000,
    "epoch_num": 1, "aggregation_frequency": -1, "batch_size": 100, "enable_val": false,
    "enable_test": false, "layer_num_on_client": 1, "pipe_batch_num": 1, "profile_iter_num": 0,
    "uplink_bandwidth": 10, "downlink_bandwidth": 25
}"""
# all on the device, no profiler, one average an epoch
CLASS_DEFAULTS = """{
    "layer_num_on_client": -1, "profile_iter_num": -1, "aggregation_frequency": -1,
    "thread_num": 0, "async_comm": false, "half_duplex": false, "enable_profiler": false,
    "duplicate_pipe_batch": false, "immediate_update": false, "batch_size": 100,
    "client_num": 4, "data_size": 10000, "same_data_size_for_each_client": false
}"""
TOML = """
model = "VGG11"
devices = 2
cut = 3
lr = 1
"""


def written(folder, text, name="run.toml"):
    path = folder / name
    path.write_text(text)
    return path


def test_the_published_file(tmp_path):
    config = read(written(tmp_path, PUBLISHED, "config.json"))
    assert (config.devices, config.data) == (4, "cifar10")
    assert (config.cuts, config.micro) == ((1,), 1)
    assert (config.uplink_mbit, config.downlink_mbit, config.test_size) == (10.0, 25.0, 10_000)


def test_values_of_our_own_keys_and_of_the_command(tmp_path):
    config = read(written(tmp_path, TOML))
    assert config.cuts == (3,)
    assert config.lr == 1.0
    assert isinstance(config.lr, float)
    assert read(written(tmp_path, TOML), folder="elsewhere").folder == "elsewhere"
    assert read(written(tmp_path, 'data = "digits"')).augment == "none"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modell = 'VGG5'", "unexpected keyword argument 'modell'"),
        ("code = 'import os'", "unexpected keyword argument 'code'"),
        ("model = 'VGG7'", "give VGG5"),
        ("data = 'imagenet'", "cifar10, mnist"),
        ("batch = '100'", "is no int"),
        ("batch = true", "is no int"),
        ("devices = 0", "at least 1"),
        ("port = 0", "at least 1"),
        ("port = 70000", "port is 70000.* at most 65534"),
        ("devices = 1000000000", "devices is 1000000000.* at most 1000"),
        ("\ufeff= 3", "run.toml"),
        ("units = 3", "no key of a file"),
        ("cut = -2", "give one number, at least -1"),
        ("cut = [1, 2]", "give one number"),
        ("cut = 1\nlayer_num_on_client = 2", "set twice"),
        ("= 3", "run.toml"),
        ("lr = -0.1", "lr is -0.1: it must be at least 0, at most"),
        ("lr = nan", "lr is nan"),
        ("lr = inf", "lr is inf"),
        ("momentum = 0.9", "unexpected keyword argument 'momentum'"),
        ("join_s = 1.0", "unexpected keyword argument 'join_s'"),
        ("augment = 'strong'", "augment is 'strong': give none, weak"),
        ("uplink_mbit = inf", "uplink_mbit is inf"),
        ("aggregate_every = -2", "at least -1"),
        ("immediate_update = true", "immediate_update is not built here"),
        ("duplicate_pipe_batch = true", "is not built here"),
        ("same_data_size_for_each_client = 'no'", "no bool"),
        ("data_size = 8\nclient_num = 'two'\nsame_data_size_for_each_client = false", "run.toml"),
    ],
)
def test_bad_files(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        read(written(tmp_path, text))


def test_the_published_class_defaults_and_what_differs_here_is_said(tmp_path, caplog):
    config = read(written(tmp_path, CLASS_DEFAULTS, "config.json"))
    assert (config.cuts, config.profile, config.aggregate_every) == ((-1,), 0, -1)
    assert (config.threads, config.micro) == (1, 1)
    assert config.data_size == 2500  # of each device
    said = " ".join(caplog.messages)
    assert "async_comm = False: here sending and computing always overlap" in said
    assert "thread_num = 0: bits depend on it" in said
    assert "half_duplex" not in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("half_duplex = true", "both directions"),
        ("enable_profiler = true", "events.csv"),
        ("thread_num = -1", "bits depend on it"),
        # these are so here
        ("async_comm = true", ""),
        ("half_duplex = false", ""),
        ("enable_profiler = false", ""),
        ("same_data_size_for_each_client = true", ""),
        ("profile_iter_num = -1", ""),
    ],
)
def test_published_switches_that_are_none_here(tmp_path, caplog, text, words):
    assert read(written(tmp_path, text)) == Config()
    assert words in " ".join(caplog.messages)
    assert bool(caplog.messages) == bool(words)


@pytest.mark.parametrize(("more", "size"), [("", 1000), ("true", 1000), ("false", 250)])
def test_a_size_is_of_each_device_unless_the_file_says_otherwise(tmp_path, more, size):
    text = "client_num = 4\ndata_size = 1000\n"
    text += f"same_data_size_for_each_client = {more}\n" if more else ""
    assert read(written(tmp_path, text)).data_size == size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": float("nan")}, "lr is nan"),
        ({"augment": "strong"}, "give none, weak"),
    ],
)
def test_settings_refuse_the_same(change, words):
    with pytest.raises(ValueError, match=words):
        Settings(**change)
