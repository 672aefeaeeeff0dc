"""Configurations: our keys and the published ones, and what is refused."""

import pytest

from alkit.split.published import read

PUBLISHED = """{
    "experiment_name": "test", "server_address": "127.0.0.1", "port": 50000, "client_num": 4,
    "dataset_name": "CIFAR-10", "model_name": "VGG5", "data_size": 10000, "test_data_size": 10000,
    "epoch_num": 1, "aggregation_frequency": -1, "batch_size": 100, "enable_val": false,
    "enable_test": false, "layer_num_on_client": 1, "pipe_batch_num": 1, "profile_iter_num": 0,
    "uplink_bandwidth": 10, "downlink_bandwidth": 25
}"""
# all on the device, no profiler, one average an epoch


@pytest.fixture
def given(tmp_path):
    """Read a file of this text."""

    def call(text, name="run.toml", **changes):
        (tmp_path / name).write_text(text)
        return read(tmp_path / name, **changes)

    return call


def test_the_published_file(given):
    config = given(PUBLISHED, "config.json")
    assert (config.devices, config.data) == (4, "cifar10")
    assert (config.cuts, config.micro) == ((1,), 1)
    assert (config.uplink_mbit, config.downlink_mbit, config.test_size) == (10.0, 25.0, 10_000)


BAD = [
    ("code = 'import os'", "unexpected keyword argument 'code'"),
    ("model = 'VGG7'", "give VGG5"),
    ("data = 'imagenet'", "cifar10, mnist"),
    ("batch = '100'", "is no int"),
    ("batch = true", "is no int"),
    ("port = 0", "at least 1"),
    ("port = 70000", "port is 70000.* at most 65534"),
    ("devices = 1000000000", "devices is 1000000000.* at most 1000"),
    ("\ufeff= 3", "run.toml"),
    ("units = 3", "no key of a file"),
    ("cut = -2", "give one number, at least -1"),
    ("cut = 1\nlayer_num_on_client = 2", "set twice"),
    ("lr = -0.1", "lr is -0.1: it must be at least 0, at most"),
    ("lr = nan", "lr is nan"),
    ("uplink_mbit = inf", "uplink_mbit is inf"),
    ("augment = 'strong'", "augment is 'strong': give none, weak"),
    ("aggregate_every = -2", "at least -1"),
    ("immediate_update = true", "immediate_update is not built here"),
    ("duplicate_pipe_batch = true", "is not built here"),
    ("same_data_size_for_each_client = 'no'", "no bool"),
    ("data_size = 8\nclient_num = 'two'\nsame_data_size_for_each_client = false", "run.toml"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_bad_files(given, text, words):
    with pytest.raises(ValueError, match=words):
        given(text)


@pytest.mark.parametrize(("more", "size"), [("", 1000), ("true", 1000), ("false", 250)])
def test_a_size_is_of_each_device_unless_the_file_says_otherwise(given, more, size):
    text = "client_num = 4\ndata_size = 1000\n"
    text += f"same_data_size_for_each_client = {more}\n" if more else ""
    assert given(text).data_size == size
