"""Tables of recorded runs over shaped links: iterations beside their prediction, the fair table."""

import pandas as pd

SHOWN = (4, 10, 20)  # micro-batches
LANES = ("device", "uplink", "server", "downlink")
UNITS = {"iteration_s", "predicted_s", "times_as_fast", "at_most"}


def iterations(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a link and cut: seconds with one micro-batch, and how much faster with more.

    *At most* is what no number of micro-batches can beat: all lanes' work over the busiest one's.
    *Off prediction* is the worst over all numbers of micro-batches, in percent.
    """
    own = recorded[recorded.metric.isin(UNITS)].astype({"value": float})
    wide = own.pivot(index=["link", "cut", "micro"], columns="metric", values="value")
    rows = []
    for (link, cut), part in wide.groupby(level=["link", "cut"]):
        by_micro = part.droplevel(["link", "cut"])
        off = 100 * (by_micro.iteration_s / by_micro.predicted_s - 1)
        gains = {
            f"{n} micro-batches": f"{by_micro.times_as_fast[n]:.2f}"
            for n in SHOWN
            if n in by_micro.index
        }
        first = by_micro.iloc[0]
        rows.append(
            {
                "link": link,
                "units on the device": int(cut),
                "one micro-batch, s": round(first.iteration_s, 3),
                **gains,
                "at most": f"{first.at_most:.2f}",
                "off prediction": f"{off[off.abs().idxmax()]:+.0f} %",
            }
        )
    return pd.DataFrame(rows)


def fair(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a link and method: seconds of an epoch, MiB, idle shares, accuracy."""
    shown = recorded.metric.isin({"epoch_s", "MiB", "accuracy", *LANES})
    own = recorded[shown].astype({"value": float})
    wide = own.pivot(index=["link", "method"], columns="metric", values="value").reset_index()
    order = {"fed": 0, "splitfed": 1, "pipelearn": 2}
    wide = wide.sort_values(
        ["link", "method"], key=lambda c: c.map(order).fillna(c) if c.name == "method" else c
    )
    made = wide[["link", "method"]].copy()
    made["epoch, s"] = wide.epoch_s.round(1)
    made["MiB"] = wide.MiB.round(1)
    for lane in LANES:
        made[f"{lane} idle"] = (100 * wide[lane]).round().astype(int).astype(str) + " %"
    made["accuracy, %"] = wide.accuracy.round(1)
    return made.reset_index(drop=True)
