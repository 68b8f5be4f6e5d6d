"""A sweep's study in optuna-dashboard, by what its server answers to its page."""

import json
from wsgiref.util import setup_testing_defaults

import pytest

from babeltune.sweep.search.study import write_study
from babeltune.sweep.state.folder import read_of_trial
from babeltune.sweep.state.leaderboard import leaderboard


@pytest.fixture
def answer(copied, tmp_path):
    """What optuna-dashboard answers about the study of the finished sweep."""
    from optuna_dashboard import wsgi

    sweep, folder, _ = copied
    assert write_study(sweep, folder.path, tmp_path / "study.db") == 4
    app = wsgi(f"sqlite:///{tmp_path}/study.db")

    def ask(path):
        request, statuses = {"PATH_INFO": path}, []
        setup_testing_defaults(request)
        body = b"".join(app(request, lambda status, headers, error=None: statuses.append(status)))
        assert statuses == ["200 OK"]
        return json.loads(body)

    return ask


def test_the_study_opens_in_optuna_dashboard_with_its_trials_settings_and_best_one(copied, answer):
    _, folder, _ = copied
    (study,) = answer("/api/studies")["study_summaries"]
    record = answer(f"/api/studies/{study['study_id']}")
    assert record["directions"] == ["maximize"]
    states = {f"t{trial['number']:04d}": trial["state"] for trial in record["trials"]}
    assert states == {"t0000": "Complete", "t0001": "Fail", "t0002": "Complete", "t0003": "Complete"}
    for trial in record["trials"]:
        settings = {each["name"]: each["param_external_value"] for each in trial["params"]}
        recorded = read_of_trial(folder.trial(trial["number"]), "trial.json")["params"]
        assert settings == {name: str(value) for name, value in recorded.items()}
    assert {each["name"] for each in record["union_search_space"]} == {"temperature", "training.learning_rate"}
    best = max(row.metrics["dev/everyday/accuracy"] for row in leaderboard(folder) if row.best is not None)
    assert max(trial["values"][0] for trial in record["best_trials"]) <= best
    curves = [trial["intermediate_values"] for trial in record["trials"] if trial["state"] == "Complete"]
    assert all(len(curve) == 2 for curve in curves), "a value at each report"
