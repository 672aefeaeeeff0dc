"""A cell that ends in controls shows them, and a still for readers without a kernel."""

from IPython.core.formatters import DisplayFormatter

from studies.common.play import Play


def test_an_output_holds_the_controls_and_a_still():
    shown = Play(lambda share=0.5: print(f"drawn at {share}"), share=(0.0, 1.0))
    shown.children[0].value = 0.25
    data, _ = DisplayFormatter().format(shown)
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "drawn at 0.25" in data["text/html"]
    assert "the controls need a kernel" in data["text/plain"]
