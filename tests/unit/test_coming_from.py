"""What the page says of the originals' keys is so."""

import json
import re

from alkit.base.paths import root
from alkit.split.published import read

PAGE = (root() / "docs" / "coming_from.md").read_text(encoding="utf-8")
ITEMS = {"client_num": 3, "layer_num_on_client": 2, "pipe_batch_num": 4, "epoch_num": 5}
ITEMS |= {"aggregation_frequency": 1, "batch_size": 7, "data_size": 80, "enable_val": True}
ITEMS |= {"profile_iter_num": 0, "uplink_bandwidth": 10, "downlink_bandwidth": 25}


def test_an_original_file_means_what_the_page_says(tmp_path):
    (file := tmp_path / "config.json").write_text(json.dumps(ITEMS | {"enable_test": False}))
    config = read(file)
    assert {*ITEMS, "enable_test"} <= {*re.findall(r"`(\w+)`", PAGE)}
    assert (config.devices, config.cuts, config.micro, config.epochs) == (3, (2,), 4, 5)
    assert (config.aggregate_every, config.batch, config.data_size) == (1, 7, 80)
    assert (config.validate, config.test, config.uplink_mbit) == (True, False, 10.0)
