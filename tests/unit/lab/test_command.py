"""The command: what it prints, and its exit codes."""

import pytest

from alkit import command
from alkit.lab import batch, results


@pytest.fixture(autouse=True)
def _in_a_checkout(notebook, checkout, monkeypatch):
    """A checkout with one notebook, which is also the working directory."""
    monkeypatch.chdir(checkout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run 10_y", "there is no notebook 10_y (did you mean '10_x'?)"),
        ("run 10_x -p lrr=1", "10_x.ipynb: no parameter 'lrr' (did you mean 'lr'?)"),
        ("sweep none.yaml", "[Errno 2] No such file or directory: 'none.yaml'"),
    ],
)
def test_bad_input_is_one_message_and_code_2(words, message, capsys):
    assert command.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"alkit: {message}")
    assert err.count("\n") == 1


def stand_in(monkeypatch, outcome):
    """Let the jobs of a command end with an outcome (of a job), and return what was executed."""
    seen = []

    def sweep(jobs, workers=1, **options):
        seen.append((jobs, workers, options))
        return [(job, outcome(job)) for job in jobs]

    monkeypatch.setattr(batch, "sweep", sweep)
    return seen


def saved(preset="smoke", report=(), **parameters):
    """Record a run; return its file."""
    run = results.Run("10_x", preset)
    run.parameters = parameters
    for seed, value in enumerate((97.0, 97.8)):
        run.record("accuracy", value, method="al", seed=seed, unit="%")
    for text in report:
        run.record("report", text)
    return run.save()


def test_a_run_says_what_it_reports_and_where_all_is(monkeypatch, checkout, capsys):
    def done(job):
        job.folder.mkdir(parents=True, exist_ok=True)
        saved(report=["line one\nline two"]).replace(job.folder / "record.json")
        return "done"

    seen = stand_in(monkeypatch, done)
    values = "mode='2026' -p lr=1e-3 seeds=[1,2]"
    assert command.main(f"run 10_x --record --timeout 7 -p {values}".split()) == 0
    (job,), workers, options = seen[0]
    assert (job.parameters["mode"], job.parameters["lr"]) == ("2026", 1e-3)
    assert (job.timeout_s, job.threads, workers) == (7, None, 1)
    assert options == {"record": True, "force": True}
    name = job.folder.name
    said = capsys.readouterr().out
    assert said.startswith("line one\nline two\n")
    assert said.endswith(f"runs/{name}/10_x.ipynb\n")


def test_notebooks_and_committed_runs_are_listed(checkout, capsys):
    line = "{name: 10_x, family: al, shelf: lab, minutes: 5, title: A title, sentence: It does x.}"
    (checkout / "notebooks/index.yaml").write_text(f"- {line}\n")
    assert command.main(["list"]) == 0
    assert capsys.readouterr().out.split()[-6:] == "10_x 5 min A title (smoke)".split()
    results.merge([saved("cpu")])
    assert command.main(["results", "--notebook", "10"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:4] == "10_x cpu unknown 1".split()
