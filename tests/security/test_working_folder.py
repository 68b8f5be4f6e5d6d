"""No process that babeltune, Ray or MLflow starts imports from the folder in which the user stands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from ports import free_port
from waiting import PATIENCE_S, wait_until

BABELTUNE = str(Path(sys.executable).with_name("babeltune"))
LIBRARIES = (
    *("torch", "numpy", "pandas", "tokenizers", "transformers", "datasets", "sentence_transformers", "model2vec"),
    *("ray", "optuna", "mlflow", "sqlalchemy", "flask", "uvicorn", "yaml", "pydantic", "typer", "rich", "matplotlib"),
)


@pytest.mark.long
def test_a_sweep_its_promotion_and_its_pages_import_nothing_from_there(tiny_file, tiny_stores, loopback_only, tmp_path):
    shutil.copytree(tiny_stores, tmp_path / "home" / "stores")
    stands, imported = tmp_path / "stands", tmp_path / "imported"
    stands.mkdir()
    for name in LIBRARIES:
        line = (
            f"import sys; open({str(imported)!r}, 'a').write({name!r} + f' by {{sys.argv}}\\n'); raise SystemExit(77)\n"
        )
        (stands / f"{name}.py").write_text(line)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))}
    environment["BABELTUNE_HOME"] = str(tmp_path / "home")

    def run(*arguments):
        done = subprocess.run(
            [BABELTUNE, *map(str, arguments)], cwd=stands, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run("submit", tiny_file)
    run("promote", "tiny")
    run("evaluate", "tiny", "--model", "models:/tiny@champion")
    run("report", "tiny", "--out", tmp_path / "report.html")
    port = free_port()
    pages = subprocess.Popen([BABELTUNE, "ui", "--no-open", "--port", str(port)], cwd=stands, env=environment)

    def answers():
        try:
            return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).ok
        except requests.ConnectionError:
            return False

    try:
        wait_until(answers)
    finally:
        pages.terminate()
        pages.wait(PATIENCE_S)
    assert not imported.exists(), imported.read_text()
