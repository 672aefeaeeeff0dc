"""The dashboard of label autoencoders tells the published one from a cure."""

from dataclasses import replace

import pytest

from alkit.al.recipes import find_recipe
from studies.label_training import Variant
from studies.labels_widget import LabelPlateau

ORIGINAL = find_recipe("original", "images")
VARIANTS = {
    "original": Variant(ORIGINAL),
    "fixed": Variant(replace(ORIGINAL, codes="fixed", first_loss="cross_entropy")),
}


def test_setting_a_value_draws_anew():
    board = LabelPlateau(VARIANTS, classes=20, code_dim=64, epochs=3, steps=20)
    assert board.stalled
    assert board.constant == pytest.approx(0.0475)
    pairs = zip(board.spreads, board.spreads[1:], strict=False)
    assert all(below > 4 * above for below, above in pairs)
    first = bytes(board.picture.value)
    assert first.startswith(b"\x89PNG")
    assert "not below it after 3 epochs" in board.report.value

    board.variant.value = "fixed"
    assert board.escape == 1
    assert not board.stalled
    assert len(set(board.spreads)) == 1
    assert bytes(board.picture.value) != first

    board.variant.value, board.classes.value = "original", 10
    assert board.constant == pytest.approx(0.09)
