"""The replay of searches on a tiny table: it runs, its figures are the same twice, and its parts do what they say."""

import gzip
import json
import math

import numpy as np
import pytest

from babeltune.planning.space import sample
from benchmarks.search_replay import __main__ as replay
from benchmarks.search_replay.confirm import Spent, until
from benchmarks.search_replay.record import CORPORA, sweep_of
from benchmarks.search_replay.table import Surrogate, features, portfolio, read_table

SETTINGS, REPORTS, JUDGED = 30, 9, 1000


def objective(sweep, params, shift):
    """Nine reports that rise to a value, which falls with the distance from one best setting."""
    place = np.array(features(sweep.parameters, params))
    last = 0.8 * math.exp(-float(((place - 0.6 - shift) ** 2).sum()))
    return [round(last * (1 - 0.7**report), 5) for report in range(1, REPORTS + 1)]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    corpora = {}
    for shift, corpus in zip((0, 0.05, -0.05), CORPORA, strict=True):
        sweep = sweep_of(corpus)
        settings = [
            {
                "number": number,
                "params": (params := sample(sweep, number)),
                "objective": objective(sweep, params, shift),
                "pairs": [1000 * report for report in range(1, REPORTS + 1)],
                "operations": 1e6 * params["student.width"],
                "bytes": 1e6,
                "cpu_seconds": 1.0,
            }
            for number in range(SETTINGS)
        ]
        corpora[corpus] = {"sweep": f"{corpus}-1", "seed": 0, "judged": JUDGED, "settings": settings}
    path = tmp_path_factory.mktemp("table") / "table.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"commit": "-", "rates": [10.0, 1.0], "corpora": corpora}).encode()))
    return path


@pytest.fixture
def short(monkeypatch):
    """Searches of a few trials."""
    monkeypatch.setattr("benchmarks.search_replay.replay.MOST_TRIALS", 10)


@pytest.mark.long
def test_a_replay_prints_the_same_figures_twice(short, table, tmp_path, capsys):
    names = ["random", "today", "multivariate + regret + portfolio"]
    arguments = ["--table", str(table), "--seeds", "2", "--only", *names, "--json", str(tmp_path / "rows.json")]
    code = replay.main(arguments)
    first = capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {name: list(by_corpus) for name, by_corpus in rows.items()} == {name: list(CORPORA) for name in names}
    assert all(len(outcomes) == 2 for by_corpus in rows.values() for outcomes in by_corpus.values())
    assert "winner: " in first
    (tmp_path / "rows.json").unlink()
    assert replay.main(arguments) == code
    assert capsys.readouterr().out == first


@pytest.mark.long
def test_kept_outcomes_are_run_again_only_for_another_table(short, table, tmp_path, capsys, monkeypatch):
    arguments = ["--table", str(table), "--seeds", "1", "--only", "random", "--json", str(tmp_path / "rows.json")]
    replay.main(arguments)
    first = capsys.readouterr().out
    monkeypatch.setattr(replay, "contest", None)
    replay.main(arguments)
    assert capsys.readouterr().out == first
    other = tmp_path / "other.json.gz"
    other.write_bytes(gzip.compress(gzip.decompress(table.read_bytes()) + b" "))
    with pytest.raises(TypeError):
        replay.main([*arguments[2:], "--table", str(other)])


def test_the_surrogate_gives_back_what_was_recorded(table):
    corpus = read_table(table)["deu"]
    surrogate = Surrogate(corpus, sweep_of("deu"))
    params = [setting.params for setting in corpus.settings]
    assert surrogate.curves(params) == pytest.approx(corpus.curves(), abs=0.05)
    assert surrogate.best == corpus.curves()[:, -1].max()
    assert surrogate.best - surrogate.enough == pytest.approx(math.sqrt(surrogate.best * (1 - surrogate.best) / JUDGED))
    assert min(surrogate.rank_correlation()) > 0.3


def test_a_wide_student_costs_its_counted_seconds(table):
    corpus = read_table(table)["deu"]
    surrogate = Surrogate(corpus, sweep_of("deu"))
    setting = corpus.settings[0]
    a_pair = 1e6 * setting.params["student.width"] / 10e9 + 1e6 / 1e9
    assert surrogate.seconds(setting.params) == pytest.approx([1000 * a_pair] * REPORTS)


def test_a_portfolio_begins_with_what_is_best_on_the_corpora_together(table):
    surrogates = [Surrogate(corpus, sweep_of(name)) for name, corpus in read_table(table).items()]
    chosen = portfolio(surrogates, 3)
    assert 1 <= len(chosen) <= 3
    assert len({json.dumps(point) for point in chosen}) == len(chosen)
    recorded = [setting.params for setting in surrogates[0].corpus.settings]
    regrets = sum(
        (one.best - one.curves([chosen[0], *recorded])[:, -1]) / one.corpus.standard_error(one.best)
        for one in surrogates
    )
    assert regrets.argmin() == 0


def test_a_real_sweep_has_spent_what_its_trials_cost_up_to_one_good_enough():
    trials = [Spent(2.0, 0.5), Spent(0.5, 0.0), Spent(3.0, 0.8), Spent(9.0, 0.9)]
    assert until(trials, 0.8) == (3, 5.5)
    assert until(trials, 0.5) == (1, 2.0)
    assert until(trials, 0.95) is None
