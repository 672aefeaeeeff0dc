"""The control message: what goes in comes out."""

import json
from dataclasses import replace

from alkit.elastic import lines
from alkit.elastic.decision import Decision
from alkit.elastic.layout import Layout

LATER = {"number": 2, "epoch": 2, "step": 320, "samples": 20_480}
MESSAGE = Decision(
    layout=Layout(frozen=7, counts=(5,), start=15, replicas=2, micro=1, batch=64),
    **LATER,
    cached=True,
    generation=2,
    norms=[0.5] * 12,
)


def test_it_travels_flat_through_json():
    """As it stands in checkpoints."""
    assert MESSAGE.plain() == {
        **LATER,
        "frozen": 7,
        "counts": [5],
        "start": 15,
        "replicas": 2,
        "micro": 1,
        "batch": 64,
        "cached": True,
        "generation": 2,
        "norms": [0.5] * 12,
    }
    assert Decision.read(json.loads(json.dumps(MESSAGE.plain()))) == MESSAGE
    # 24 layers and 64 ranks overflow the published 50 floats.
    layout = Layout(frozen=20, counts=(6,), start=41, replicas=64, micro=4, batch=4096)
    large = replace(MESSAGE, layout=layout, generation=5, norms=[0.1] * 24)
    assert Decision.read(large.plain()).layout.ranks == 64


def test_the_line_names_what_changed():
    layout = Layout(frozen=4, counts=(9, 8), start=9, replicas=1, micro=16, batch=64)
    before = replace(MESSAGE, layout=layout, norms=[])
    line = lines.decided(MESSAGE, before, 12)
    assert line.startswith("[epoch 2 step 320] TRANSFORM frozen 4->7/12  pipeline 2->1")
    assert "replicas 1->2" in line
    assert "micro-batches 16->1  batch 64" in line
    more = replace(layout, counts=(9,), replicas=4)
    assert "(+ranks 2,3)" in lines.decided(replace(MESSAGE, layout=more), before, 12)
