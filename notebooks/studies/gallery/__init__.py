"""One figure per notebook, drawn from the committed records: for README, the site, each first cell.

    records ──► draw ──► figure ──► figures/NAME.svg and .png      (`make results`)
                           └──► its title is the finding ──► alt text in the notebook's first cell

A figure's bytes depend on the records alone; a test draws all of them again.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures import viz
from alkit.records import results
from studies.all_methods import runs
from studies.all_methods import tables as axis_tables
from studies.gallery import al, delayed, drawings, elastic, front, split, targets

__all__ = ["FIGURES", "PAGES", "Entry", "alternative", "draw", "draw_all", "finding", "findings"]


@dataclass(frozen=True)
class Entry:
    """A notebook's figure.

    Attributes:
        draw: makes it from the rows of the notebook's records; None where they hold too little.
        presets: whose records these are, one below the other; none where none are needed.
    """

    draw: Callable[[pd.DataFrame], Figure | None]
    presets: tuple[str, ...] = ("cpu",)

    @property
    def shows(self) -> str:
        """What it shows, for who can't see it: the first sentence of `draw`'s description."""
        told = (self.draw.__doc__ or "").split("\n")[0].rstrip(".")
        return told.removeprefix("Draw ")


def _all_methods(rows: pd.DataFrame) -> Figure:
    """Draw three batches on four workers, one chart per method, on one axis of time."""
    return axis_tables.picture(list(runs.ROWS))


def _trade(rows: pd.DataFrame) -> Figure | None:
    """Draw what ten methods lose or gain against what they speed up, from 00's record."""
    recorded = results.load("00_all_methods", "cifar")
    return axis_tables.trade(recorded) if len(recorded) else None


FIGURES: dict[str, Entry] = {
    "00_all_methods": Entry(_all_methods, ()),
    "01_al_layer_by_hand": Entry(al.layer, ()),
    "02_al_pipeline": Entry(al.throughput),
    "03_speed": Entry(al.race),
    "06_label_ladder": Entry(al.ladder),
    "07_pipeline_by_hand": Entry(al.by_hand, ()),
    "08_depth": Entry(al.depth),
    "09_block_size": Entry(al.block_sizes),
    "10_vgg_al": Entry(al.gaps),
    "11_resnet_al": Entry(al.gaps),
    "12_lstm_al": Entry(al.gaps),
    "13_transformer_al": Entry(al.gaps),
    "14_label_autoencoders": Entry(al.label_sides),
    "16_early_exit": Entry(al.exits),
    "20_split_learning": Entry(split.lanes, ()),
    "21_pipelearn_run": Entry(split.micro_batches),
    "23_break_even": Entry(split.break_even),
    "30_schedules": Entry(delayed.schedules, ()),
    "31_equalities": Entry(delayed.directions),
    "32_resnet_accuracy": Entry(delayed.resnet),
    "36_language_model": Entry(delayed.characters),
    "37_flushed_orders": Entry(delayed.orders),
    "40_freezing": Entry(elastic.freezing),
    "41_elastic_pipeline": Entry(elastic.elastic_speed),
    "43_results": Entry(elastic.switches, ("rivals", "rivals_sst2")),
    "45_memory_budget": Entry(elastic.memory),
    "50_layer_inverse": Entry(targets.inverse),
    "52_training": Entry(targets.dtp_accuracy, ("cifar",)),
    "90_results": Entry(_trade, ()),
}

PAGES: dict[str, Entry] = {  # on pages, or further down in notebooks
    "front": Entry(front.front, ()),
    "feedback_loop": Entry(drawings.feedback_loop, ()),
    "freezing": Entry(drawings.freezing, ()),
    "stash": Entry(drawings.stash, ()),
}


def draw(name: str) -> Figure | None:
    """Return a figure from its committed records; None where there are none yet."""
    entry = (FIGURES | PAGES)[name]
    kept = [results.load(name, preset) for preset in entry.presets]
    rows = pd.concat([each for each in kept if len(each)]) if any(map(len, kept)) else None
    if entry.presets and rows is None:
        return None
    viz.set_theme()
    figure = entry.draw(pd.DataFrame() if rows is None else rows)
    if figure is not None:
        _settle(figure)
    return figure


def _settle(figure: Figure) -> None:
    """Lay a figure out for good: the layout's last digits are another process's to change."""
    shown = figure.dpi
    figure.set_dpi(viz.SAVED_DPI)  # letters are of another width at another size
    for _ in range(2):  # the first time, long names still stick out
        figure.draw_without_rendering()
    figure.set_dpi(shown)
    figure.set_layout_engine("none")
    for ax in figure.axes:
        left, bottom, width, height = (round(each, 4) for each in ax.get_position(True).bounds)
        ax.set_position((left, bottom, width, height))


def finding(figure: Figure) -> str:
    """Return what a figure's title states."""
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    said = figure.get_suptitle() or "; ".join(title for title in titles if title)
    return " ".join(said.split())


def draw_all() -> dict[str, Figure]:
    """Return by notebook every figure that has records; closed, so that no cell shows them all."""
    drawn = {}
    for name in (*PAGES, *FIGURES):
        if (figure := draw(name)) is not None:
            plt.close(figure)
            drawn[name] = figure
    return drawn


def findings(figures: Mapping[str, Figure]) -> pd.DataFrame:
    """Return a row a figure: its notebook and the finding."""
    own = {name: each for name, each in figures.items() if name in FIGURES}
    rows = [(f"[{name[:2]}]({name}.ipynb)", finding(each)) for name, each in own.items()]
    return pd.DataFrame(rows, columns=["notebook", "finding"])


def alternative(name: str, figure: Figure) -> str:
    """Return the text that stands for a figure: its finding, then what it shows."""
    said = re.sub(r"\[([^,\]]+), ([^\]]+)\]", r"from \1 to \2", finding(figure))
    shows = (FIGURES | PAGES)[name].shows
    return f"{said}. {shows[:1].upper()}{shows[1:]}."
