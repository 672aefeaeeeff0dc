"""The site's sources: front page, links, alt texts; its schedules, which are the simulator's."""

import importlib
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

import alkit
from alkit.delayed.methods import METHODS as DELAYED
from alkit.delayed.schedules import schedule_for
from alkit.records.contents import Entry, contents
from alkit.schedule.clock import simulate

ROOT = Path(__file__).resolve().parents[2]


def _module(name: str) -> ModuleType:
    """Import a file of the site; they import each other."""
    if str(ROOT / ".site") not in sys.path:
        sys.path.append(str(ROOT / ".site"))
    return importlib.import_module(name)


entries, links, books, pages, schedules, night = map(
    _module, ("entries", "links", "books", "pages", "schedules", "night")
)


@pytest.fixture
def source(tmp_path, monkeypatch):
    for module in (pages, books):
        monkeypatch.setattr(module, "SOURCE", tmp_path)
    return tmp_path


def test_the_front_page_has_one_picture_install_and_the_course(source):
    pages.write_fronts(contents())
    page = (source / "index.md").read_text()
    assert page.count("/figures/front.svg") == 1
    assert page.index("front.svg") < page.index("pip install") < page.index("grid-item-card")
    course = [each for each in contents() if each.shelf == "course"]
    assert page.count("grid-item-card") == len(course) == 12
    assert all(each.sentence in page for each in course)
    listed = (source / "notebooks" / "index.md").read_text()
    assert all(f"({each.name}.ipynb)" in listed for each in contents())


def test_results_begin_with_findings(source):
    pages.write_results()
    text = (source / "results.md").read_text()
    assert text.index("What we found") < text.index("| ")


def test_drawings_in_text_fit_the_page():
    wide = "words\n\n```text\n" + "-" * 94 + "\n```\n\nmore"
    assert "```{code-block} text\n:class: wide-100\n" in books.fitted(wide)
    css = (ROOT / ".site" / "static" / "site.css").read_text()
    assert ".wide-100 pre" in css
    narrow = wide.replace("-" * 94, "-" * 60)
    assert books.fitted(narrow) == narrow
    code = wide.replace("```text", "```python")
    assert books.fitted(code) == code
    longest = 0
    for each in contents():
        cells = nbformat.read(each.path, as_version=4).cells
        drawn = [m[1] for c in cells for m in books.DRAWING.finditer(c.source)]
        longest = max([longest, *(len(line) for text in drawn for line in text.splitlines())])
    assert 70 < longest <= 120  # for which there are letters


def test_a_figure_has_colours_for_the_night():
    svg = night.by_night('<svg width="1"><path style="fill: #ffffff"/></svg>')
    assert svg.startswith('<svg width="1"><style>@media (prefers-color-scheme: dark)')
    assert '[style*="fill: #ffffff"]{fill: #14181e!important}' in svg


def test_headings_in_code_cut_no_page():
    text = "# top\n\nwords\n\n## One\n\n```sh\n## no heading\n```\n\n## Two\nend\n"
    parts = entries.sections(text)
    assert list(parts) == ["", "One", "Two"]
    assert "## no heading" in parts["One"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[30](30_schedules.ipynb)", "[30](/notebooks/30_schedules.ipynb)"),
        ("[it](../README.md#words)", "[it](/guide/index.md#words)"),
        ("[it](../RESULTS.md#x)", "[it](/results.md#x)"),
        ("![a](../figures/10_vgg_al.png)", "![a](/figures/10_vgg_al.svg)"),
        ("[x](../alkit/dtp/settings.py)", "[x](/autoapi/alkit/dtp/settings/index.rst)"),
        ("[x](../tests/golden.py)", "`x`"),
        ("[x](https://a.org/b)", "[x](https://a.org/b)"),
        ("[x](#idea)", "[x](#idea)"),
        ("[x](../docs/devices.md)", "[x](/guide/devices.md)"),
        ("[x](../.site/dashboard.md)", "[x](/dashboard.md)"),
        ("[x](../docs/tasks/devices.md)", "[x](/guide/tasks/devices.md)"),
    ],
)
def test_links_lead_to_pages(text, expected):
    assert links.relinked(text, ROOT / "notebooks" / "00_all_methods.ipynb") == expected


def test_a_figure_is_told_by_the_words_before_it():
    prose = "## 5 A head\n\nNot this.\n\nHow *they* learn: see [30](30_x.ipynb), `losses`."
    assert books.alternative(prose) == "How they learn: see 30, losses."
    assert books.alternative("## A head") == "a figure of this notebook"


def test_an_executed_copy_is_known_by_what_it_was_made_of(tmp_path, monkeypatch):
    entry = contents()[0]
    one = entries.executed(entry)
    assert one == entries.executed(entry)
    other = tmp_path / entry.path.name
    book = nbformat.read(entry.path, as_version=4)
    book.cells.append(nbformat.v4.new_code_cell("1"))
    nbformat.write(book, other)
    monkeypatch.setattr(Entry, "path", other)
    assert entries.executed(entry) != one


def test_an_outputs_links_lead_to_pages(tmp_path, monkeypatch):
    """90 prints tables in Markdown, which no page resolves."""
    entry = contents()[-1]
    book = nbformat.read(entry.path, as_version=4)
    said = {
        "text/markdown": "[43](43_results.ipynb), [r](../RESULTS.md#x), [x](https://a.b/c.ipynb)"
    }
    output = nbformat.v4.new_output("display_data", said)
    book.cells.append(nbformat.v4.new_code_cell("table", outputs=[output]))
    made = tmp_path / "made.ipynb"
    nbformat.write(book, made)
    monkeypatch.setattr(books, "executed", lambda entry: made)
    monkeypatch.setattr(books, "SOURCE", tmp_path)
    (tmp_path / "notebooks").mkdir()
    books.write_notebook(entry, "")
    page = nbformat.read(tmp_path / "notebooks" / f"{entry.name}.ipynb", as_version=4)
    shown = page.cells[-1].outputs[0].data["text/markdown"]
    assert shown == (
        "[43](/notebooks/43_results.ipynb), [r](/results.md#x), [x](https://a.b/c.ipynb)"
    )


def test_dead_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<p id="x"><a href="b.html#y">b</a><a href="#x">a</a>')
    (tmp_path / "b.html").write_text('<a href="a.html#z">a</a><img src="c.png"><a href="x:y">n</a>')
    assert sorted(links.dead_links(tmp_path)) == [
        "a.html links to b.html#y: no such place",
        "b.html links to a.html#z: no such place",
        "b.html links to c.png, which is not there",
    ]


COSTS = {
    "units": (1.0, 1.0, 1.0),
    "usual": (1.0, 2.0, 0.3),
    "odd": (0.37, 0.11, 1.9),
}


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_the_longest_path_is_the_clocks_time(costs):
    """What the page's script does, done here: for all sizes and methods the clock's ends."""
    for layers in range(1, schedules.MOST + 1):
        for workers in range(1, layers + 1, 3):
            for name, schedule in schedules.schedules(layers, workers).items():
                own = schedules.graph(name, schedule)
                cost = partial(schedules.cost, own, costs=costs)
                truth = simulate(schedule, lambda t, c=cost: c(t.kind, t.stage), schedules.BATCHES)
                ends, free = [], {}
                for worker, kind, layer, _, *waits in own["tasks"]:
                    start = max([free.get(worker, 0.0), *(ends[at] for at in waits)])
                    ends.append(start + cost(schedules.KINDS[kind], layer))
                    free[worker] = ends[-1]
                assert len(ends) == len(truth.intervals)
                expected = sorted(each.end_s for each in truth.intervals)
                assert sorted(ends) == pytest.approx(expected, abs=1e-9)


TWINS = {"local": "al", "local_pipeline": "al_pipeline", "elastic": "1f1b"}
TWINS |= {"ddg_inplace": "ddg", "seq": "bp_cut"}
TWINS |= dict.fromkeys(("pipedream_inplace", "pipedream_sync"), "pipedream")


def test_the_page_draws_every_schedule_of_training_on_workers():
    """All methods but those whose tasks are others: targets, split learning; twins count once."""
    drawn = {name for pairs in schedules.graphs().values() for name in pairs}
    asked = {name for name, each in alkit.METHODS.items() if each.family not in ("split", "dtp")}
    assert {TWINS.get(name, name) for name in asked} | {"bp_cut"} == drawn


@pytest.mark.parametrize("name", TWINS)
def test_twins_take_their_steps_at_the_same_times(name):
    """Whatever else differs: the versions that are seen, the losses, the errors."""
    own = alkit.METHODS[name].schedule()
    micro = 1 + max(micro for *_, micro in own.places)
    base = "1f1b" if TWINS[name] == "bp_cut" else TWINS[name]
    other = alkit.METHODS[base].schedule()
    if base in DELAYED:
        other = schedule_for(base, own.stages, micro)
    costs = {"forward": 1.0, "backward": 2.3, "update": 0.4}
    lines = [simulate(each, lambda task: costs[task.kind], 6) for each in (own, other)]
    assert lines[0].intervals == lines[1].intervals


def test_a_page_shows_a_dashboards_still(tmp_path):
    """What Sphinx makes of an output that has a widget's view and HTML."""
    view = {"version_major": 2, "version_minor": 0, "model_id": "0"}
    still = '<p>A still</p><img width="9" alt="words" src="data:image/png;base64,AAAA">'
    data = {"application/vnd.jupyter.widget-view+json": view, "text/html": still, "text/plain": "x"}
    output = nbformat.v4.new_output("execute_result", data, execution_count=1)
    cell = nbformat.v4.new_code_cell("dashboard", outputs=[output], execution_count=1)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A page"), cell])
    book.metadata = {"language_info": {"name": "python"}}
    source, made = tmp_path / "source", tmp_path / "site" / "html"
    source.mkdir()
    nbformat.write(book, source / "index.ipynb")
    settings = {
        "extensions": ["myst_nb"],
        "nb_execution_mode": "off",
        "nb_ipywidgets_js": {},
        "nb_mime_priority_overrides": _module("conf").nb_mime_priority_overrides,
    }
    lines = [f"{name} = {value!r}" for name, value in settings.items()]
    (source / "conf.py").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", str(source), str(made)]
    subprocess.run(command, check=True, timeout=300)
    page = (made / "index.html").read_text(encoding="utf-8")
    assert still in page
    assert "widget-view" not in page
