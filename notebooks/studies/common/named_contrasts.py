"""Every contrast that was written down before its runs, and what came out: RESULTS.md's table."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from alkit.records import results
from studies.common.study import TUNING_SEED, shown
from studies.delayed import accuracy_study as delayed_study
from studies.delayed import characters_study
from studies.dtp import tables as dtp_tables
from studies.ladder import tables as ladder_tables

STUDIES = {
    ("06_label_ladder", "cpu"): ladder_tables,
    ("08_depth", "cpu"): ladder_tables,
    ("32_resnet_accuracy", "cpu"): delayed_study,
    ("52_training", "cifar"): dtp_tables,
    ("36_language_model", "cpu"): characters_study,
}


def contrasts() -> pd.DataFrame:
    """Return a row a contrast that has runs: rates, difference with n and both intervals, verdict.

    The first interval is the paired t's over seeds; p is by Holm's rule over a notebook's setting.
    """
    rows = []
    for (notebook, preset), tables in STUDIES.items():
        recorded = results.load(notebook, preset)
        rates = tables.chosen_rates(recorded)
        for row in tables.contrasts(tables.contrast_gaps(recorded)).to_dict("records"):
            own = {
                variant: rates[_key(rates, row, variant)]
                for variant in row["contrast"].split(" - ")
            }
            rows.append(_row(notebook, row, own))
    return pd.DataFrame(rows)


def hypotheses() -> pd.DataFrame:
    """Return the same of what 06 asks of codes, H1 to H8, without the notebook's column.

    p is by Holm's rule over all hypotheses of a set.
    """
    recorded = results.load("06_label_ladder", "cpu")
    rows = []
    for row in ladder_tables.explored(recorded).to_dict("records"):
        setting = row["data"], row["model"]
        pair = row["contrast"].split(" - ")
        rates = {
            variant: ladder_tables.chosen_rate(recorded, *setting, variant) for variant in pair
        }
        rows.append({"hypothesis": row["hypothesis"]} | _row("06_label_ladder", row, rates))
    return pd.DataFrame(rows).drop(columns="notebook", errors="ignore")


def reading() -> pd.DataFrame:
    """Return the same of H9, of all settings of 06 and 08: codes against a head, each read apart.

    p is by Holm's rule over the five contrasts of a setting.
    """
    rows = []
    for notebook in ("06_label_ladder", "08_depth"):
        recorded = results.load(notebook, "cpu")
        rates = ladder_tables.chosen_rates(recorded)
        for row in ladder_tables.reading(recorded).to_dict("records"):
            own = {
                variant: rates[_key(rates, row, variant)]
                for variant in row["contrast"].split(" - ")
            }
            rows.append(_row(notebook, row, own))
    return pd.DataFrame(rows)


def corrections() -> pd.DataFrame:
    """Return the same of 36's corrections of old gradients, each against PipeDream as it is."""
    recorded = results.load("36_language_model", "cpu")
    rates = characters_study.chosen_rates(recorded)
    rows = []
    for row in characters_study.corrections(recorded).to_dict("records"):
        own = {method: rates[method] for method in row["contrast"].split(" - ")}
        rows.append(_row("36_language_model", row, own))
    return pd.DataFrame(rows)


def spent() -> pd.DataFrame:
    """Return what the contrasts' runs took: a row a notebook, data set and network.

    Columns: rates tried (with the tuning seed), runs, core-hours (of training, beside
    another run; empty where no record has them), processors.
    """
    rows = []
    for notebook, preset in STUDIES:
        recorded = results.load(notebook, preset)
        for (data, model), own in recorded.groupby(["data", "model"]):
            runs = own[own.metric == "diverged"]
            hours = own.value[own.metric == "train_s"].astype(float).sum() / 3600
            rows.append(
                {
                    "notebook": _link(notebook),
                    "set": f"{data}, {model}",
                    "rates tried": shown(sorted(runs.lr[runs.seed == TUNING_SEED].unique())),
                    "runs": len(runs),
                    "core-hours": f"{hours:.2g}" if hours else "",
                    "processors": ", ".join(sorted(runs.machine.str.split(", ").str[1].unique())),
                }
            )
    return pd.DataFrame(rows)


def _key(rates: Mapping[Any, float], row: Mapping[Hashable, Any], variant: str) -> Any:
    """Return how a study names the rate of a row's variant: by its setting, or for all of them."""
    return variant if variant in rates else (row["data"], row["model"], variant)


def _row(notebook: str, row: dict[Hashable, Any], rates: Mapping[str, float]) -> dict[str, str]:
    p = row["p, Holm"]
    measure = "nats" if "nats (n)" in row else "points"
    where = f"{row['data']}, {row['model']}" if "data" in row else ""
    where = where or f"wikitext, dropout {row['dropout']:g}, K = {row['modules']:.0f}"
    return {
        "notebook": _link(notebook),
        "set": where,
        "contrast": row["contrast"],
        "rates": shown([rates[variant] for variant in row["contrast"].split(" - ")]),
        "difference (n)": f"{row[f'{measure} (n)']} {measure}",
        "p, Holm": "" if pd.isna(p) else f"{p:.3f}" if p >= 0.001 else "< 0.001",
        "verdict": row["verdict"],
    }


def _link(notebook: str) -> str:
    return f"[{notebook[:2]}](notebooks/{notebook}.ipynb)"
