"""Configurations: our keys and the published ones, single devices, and what is refused."""

import json

import pytest

from alkit.split.config import Config, ConfigError, read

PUBLISHED = {
    "experiment_name": "test", "server_address": "127.0.0.1", "port": 50000, "client_num": 4,
    "dataset_name": "CIFAR-10", "model_name": "VGG5", "data_size": 10000, "test_data_size": 10000,
    "epoch_num": 1, "aggregation_frequency": -1, "batch_size": 100, "enable_val": False,
    "enable_test": False, "layer_num_on_client": 1, "pipe_batch_num": 1, "profile_iter_num": 0,
    "uplink_bandwidth": 10, "downlink_bandwidth": 25,
}  # fmt: skip
TOML = """
model = "VGG11"
devices = 2
cut = 3
lr = 1

[[device]]

[[device]]
cut = 5
micro = 4
"""


def written(folder, text, name="run.toml"):
    path = folder / name
    path.write_text(text)
    return path


def test_the_published_file(tmp_path):
    config = read(written(tmp_path, json.dumps(PUBLISHED), "config.json"))
    assert (config.devices, config.data, config.cut, config.micro) == (4, "cifar10", 1, 1)
    assert (config.uplink_mbit, config.downlink_mbit, config.test_size) == (10.0, 25.0, 10_000)


def test_single_devices(tmp_path):
    config = read(written(tmp_path, TOML))
    assert [(config.of(at).cut, config.of(at).micro) for at in (0, 1)] == [(3, 1), (5, 4)]
    assert config.lr == 1.0
    assert isinstance(config.lr, float)
    assert read(written(tmp_path, TOML), folder="elsewhere").folder == "elsewhere"


def test_digest_is_of_what_all_must_agree_on(tmp_path):
    config = read(written(tmp_path, TOML))
    assert config.digest == read(written(tmp_path, TOML), folder="a", port=9).digest
    assert config.digest != read(written(tmp_path, TOML), seed=9).digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modell = 'VGG5'", "did you mean model"),
        ("code = 'import os'", "no key 'code'"),
        ("model = 'VGG7'", "give VGG5"),
        ("data = 'imagenet'", "cifar10, mnist"),
        ("batch = '100'", "is no int"),
        ("batch = true", "is no int"),
        ("devices = 0", "at least 1"),
        ("port = 99999", "1 to 65535"),
        ("cut = -2", "-1 .all units"),
        ("cut = 1\nlayer_num_on_client = 2", "set twice"),
        ("[[device]]\nseed = 1", "no key 'seed'"),
        ("[[device]]\n[[device]]", "2 tables"),
        ("device = 3", "write .*device"),
        ("= 3", "run.toml"),
    ],
)
def test_bad_files(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        read(written(tmp_path, text))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.toml")


def test_defaults_fit():
    assert Config().of(0) == Config()
