"""A decision: what goes in comes out, and the log says what changed."""

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


def test_it_comes_back_as_it_was():
    assert Decision.read(MESSAGE.plain()) == MESSAGE


def test_the_line_names_what_changed():
    layout = Layout(frozen=4, counts=(9, 8), start=9, replicas=1, micro=16, batch=64)
    before = replace(MESSAGE, layout=layout, norms=[])
    line = lines.decided(MESSAGE, before, 12)
    assert line.startswith("[epoch 2 step 320] TRANSFORM frozen 4->7/12  pipeline 2->1")
    assert "replicas 1->2" in line
    assert "micro-batches 16->1  batch 64" in line
    more = replace(layout, counts=(9,), replicas=4)
    assert "(+ranks 2,3)" in lines.decided(replace(MESSAGE, layout=more), before, 12)
