"""The notebooks in `examples/` run, and are kept without outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def code_of(path):
    """The notebook's code cells."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_of(path))


@pytest.fixture
def short_quickstart(tmp_path, monkeypatch):
    """In the working folder, the quickstart with a small student and two languages of its shorter corpus."""
    text = (NOTEBOOKS[0].parents[1] / "search_spaces" / "quickstart.yaml").read_text(encoding="utf-8")
    (tmp_path / "search_spaces").mkdir()
    short = text[: text.index("    - name: templates")] + text[text.index("  dev:") :]
    short = short.replace("fra: fra, jpn: jpn, kor: kor, rus: rus", "fra: fra").replace("width: 512", "width: 64")
    short = short.replace("anchor_priority: [eng, rus, jpn, fra, kor]", "anchor_priority: [eng, fra]")
    (tmp_path / "search_spaces" / "quickstart.yaml").write_text(short, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster", "short_quickstart")
def test_the_notebook_of_a_sweep_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path))
    names = {}
    for cell in code_of(NOTEBOOKS[0].with_name("sweep.ipynb")):
        exec(compile("".join(cell["source"]), "sweep.ipynb", "exec"), names)
    assert names["done"].state == "finished"
    assert names["best"].name == names["done"].best
    assert len(names["vectors"]) == 3
    assert names["page"].is_file()
    assert list((tmp_path / "artifacts").rglob("report.html")), "the report of the end is in MLflow"
