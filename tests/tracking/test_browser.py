"""MLflow's pages of a sweep as a person sees them: Debian's Chromium opens what `babeltune ui` links to."""

import json

import pytest

from babeltune.errors import SweepError
from babeltune.schema.records import Objective, Point
from babeltune.sweep.state.leaderboard import winner
from babeltune.tracking import registry
from babeltune.tracking.checkpoint_models import CheckpointModel
from babeltune.tracking.mlflow_client import open_client
from babeltune.tracking.sweep_runs import trials_page
from benchmarks.event_log import EventLog
from registering import register
from screens import kept, page_of
from served import tracking
from waiting import PATIENCE_S, wait_until

AIM = Objective(metric="dev/everyday/accuracy", goal="maximize")
TRIALS = [
    (0.8, "finished", "FINISHED"),
    (0.9, "finished", "FINISHED"),
    (0.7, "pruned", "FINISHED"),
    (None, "failed", "FAILED"),
]
CARD = "---\nlicense: mit\n---\n# quick\n\nA model of four languages.\n"


def checkpoint(number, score, params):
    """A trial's best checkpoint."""
    place = f"sweeps/quick-1a2b/trials/t{number:04d}/checkpoints/000003"
    return CheckpointModel(
        name=f"quick-1a2b-t{number:04d}",
        step=8,
        time_ms=1008,
        checkpoint=place,
        dimension=384,
        note=f"The best checkpoint of trial `quick-1a2b/t{number:04d}`. Its weights: `{place}`.",
        params={"method": "soft_contrastive", **params},
        scores={f"best/{AIM.metric}": score, AIM.metric: score},
        digests={"dev/everyday": "a" * 64},
    )


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """The store, its folder and the experiment's sweep: four trials, the best is `t0001`, and its model."""
    folder = tmp_path_factory.mktemp("pages")
    store = f"sqlite:///{folder}/mlflow.db"
    tracker = EventLog(store, folder / "events.jsonl", "quick")
    tracker.start_sweep(
        "quick-1a2b", {"method": "soft_contrastive"}, {"state": "finished", "mlflow.note.content": "Four."}
    )
    for number, (score, state, status) in enumerate(TRIALS):
        rate = {"training": {"learning_rate": 0.001 * (number + 1)}}
        tracker.start_trial(number, {"method": "soft_contrastive", **rate}, {"state": "running"}, step_unit="pairs")
        if score is not None:
            scores = {f"best/{AIM.metric}": score, AIM.metric: score, "train/loss": 1 - score}
            points = [
                Point(step=s, time_ms=1000 + s, values={k: v * s / 8 for k, v in scores.items()}) for s in (2, 4, 8)
            ]
            tracker.metrics(number, points, per_step=64)
            tracker.model(number, checkpoint(number, score, rate), per_step=64)
        tracker.end_trial(number, status, {"state": state})
    tracker.end_sweep("FINISHED")
    assert tracker.close(PATIENCE_S)
    model = folder / "model"
    model.mkdir()
    (model / "README.md").write_text(CARD)
    (model / "modules.json").write_text("[]")
    tags = {"babeltune.sweep": "quick-1a2b", "babeltune.trial": "t0001"}
    tags[registry.MODEL] = registry.checkpoint_model(store, tracker.run_id(1))
    register(store, "quick", model, tracker.run_id(1), "champion", tags, replaces=None)
    return store, folder, [tracker.run_id(number) for number in range(4)]


def served(store, folder, *page):
    """The address of an MLflow server on the store."""
    return tracking(store, folder / "artifacts", folder, *page)


@pytest.fixture(scope="module")
def server(logged):
    with served(*logged[:2], link(logged)) as address:
        yield address


@pytest.fixture
def page(browser):
    with page_of(browser) as shown:
        yield shown


def link(logged):
    return trials_page(logged[0], "quick", "quick-1a2b", AIM, ("method", "training.learning_rate"))


def wait_for_words(page, *words):
    """MLflow fills its pages part by part."""
    wait_until(lambda: not missing(page, words), lambda: missing(page, words))


def missing(page, words):
    text = page.inner_text("body")
    return [word for word in words if word not in text]


@pytest.mark.needs_chromium
def test_the_link_shows_the_winner_first_with_state_objective_and_settings(logged, server, page):
    page.goto(server + link(logged))
    page.get_by_role("link", name="t0001").wait_for()
    page.get_by_text("soft_contrastive").first.wait_for()
    kept(page, "runs")
    names = [name for name in page.get_by_role("link").all_inner_texts() if name.startswith("t0")]
    assert names[:3] == ["t0001", "t0000", "t0002"], "the best is first, and no row hides the trials"
    text = page.inner_text("body")
    assert [word for word in ("finished", "pruned", "failed", AIM.metric, "state", "method") if word not in text] == []
    assert "training.learning_rate" in page.content()


@pytest.mark.long
@pytest.mark.needs_chromium
def test_the_servers_first_page_leads_to_the_trials_and_nothing_is_printed(logged, server, page):
    page.goto(server)
    page.get_by_role("link", name="t0001").wait_for()
    page.goto(f"{server}/#/experiments")
    page.get_by_text("quick").first.wait_for()
    assert (logged[1] / "server.log").read_text() == ""


@pytest.mark.long
@pytest.mark.needs_chromium
def test_charts_begin_with_the_objective(logged, server, page):
    page.goto(f"{server}{link(logged)}&compareRunsMode=CHART")
    sections = page.get_by_test_id("experiment-view-compare-runs-section-header")
    sections.nth(2).wait_for()
    page.get_by_text(f"t0001 (best/{AIM.metric})").first.wait_for()
    page.get_by_text("Step", exact=True).first.wait_for()  # the chart is drawn
    kept(page, "charts")
    assert [text.split()[0] for text in sections.all_inner_texts()][:3] == [
        "best/dev/everyday",
        "dev/everyday",
        "train",
    ]


@pytest.mark.long
@pytest.mark.needs_chromium
def test_the_sweeps_run_expands_to_its_trials(server, page):
    page.goto(f"{server}/#/experiments/1/runs?workflowType=machine_learning")
    page.get_by_role("link", name="quick-1a2b").wait_for()
    assert page.get_by_role("link", name="t0001").count() == 0
    page.locator("[role=gridcell] button").first.click()
    page.get_by_role("link", name="t0001", exact=True).wait_for()
    kept(page, "expanded")


@pytest.mark.long
@pytest.mark.needs_chromium
def test_two_trials_are_chosen_and_compared(logged, server, page):
    page.goto(server + link(logged))
    page.get_by_role("link", name="t0001").wait_for()
    for row in (1, 2):
        page.get_by_role("checkbox").nth(row).click()
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("Comparing 2 Runs").first.wait_for()
    page.get_by_text("t0001").first.wait_for()
    kept(page, "compared")
    wait_for_words(page, "t0000", f"best/{AIM.metric}", "training.learning_rate")


@pytest.mark.long
@pytest.mark.needs_chromium
def test_the_page_of_a_checkpoint_shows_scores_by_data_set_and_where_the_weights_are(logged, server, page):
    page.goto(f"{server}/#/experiments/1/runs/{logged[2][1]}?workflowType=machine_learning")
    page.get_by_text("Logged models (1)").wait_for()
    place = page.get_by_role("link", name="quick-1a2b-t0001").first.get_attribute("href")  # it opens another window
    page.goto(f"{server}/#{place.rpartition('#')[2]}")
    page.get_by_text("Its weights:").wait_for()
    page.get_by_text("dev/everyday (#aaaa").first.wait_for()
    page.locator("a[href*='/models/quick/versions/1']").first.wait_for()
    kept(page, "checkpoint")
    checkpoint = "sweeps/quick-1a2b/trials/t0001/checkpoints/000003"
    wait_for_words(page, checkpoint, f"best/{AIM.metric}", "training.learning_rate", "Ready")


@pytest.mark.long
@pytest.mark.needs_chromium
def test_a_sweeps_runs_show_states_and_its_description_leads_to_the_winner(command, copied, tmp_path, page):
    """A real sweep, through the link of `babeltune ui`."""
    sweep, folder, cluster = copied
    best, client, file = winner(folder).name, open_client(cluster.mlflow), tmp_path / "cluster.yaml"
    experiment = client.get_experiment_by_name(sweep.name).experiment_id
    (parent,) = client.search_runs([experiment], "tags.`babeltune.role` = 'sweep'")
    with served(cluster.mlflow, tmp_path) as address:
        file.write_text(f"storage: {cluster.storage}\nmlflow: {address}\n", encoding="utf-8")
        page.goto(command.document("ui", folder.id, "--cluster", file, "--no-open")["url"])
        page.get_by_role("link", name=best).wait_for()
        page.get_by_text("failed", exact=True).first.wait_for()
        kept(page, "sweep-runs")
        cells = [text.strip() for text in page.get_by_role("gridcell").all_inner_texts()]
        assert {state: cells.count(state) for state in ("finished", "failed")} == {"finished": 3, "failed": 1}
        names = [name for name in page.get_by_role("link").all_inner_texts() if name.startswith("t0")]
        assert names[0] == best
        page.goto(f"{address}/#/experiments/{experiment}/runs/{parent.info.run_id}?workflowType=machine_learning")
        page.get_by_text("is the best trial").first.wait_for()
        kept(page, "sweep")
        board = page.get_by_test_id("note-editor-preview-content").first
        assert [row in board.inner_text() for row in ("t0000", "t0001", "untrained", "teacher")] == [True] * 4
        assert board.get_by_role("link", name="report").count() == 1
        page.goto(f"{address}/{board.get_by_role('link', name=best).first.get_attribute('href')}")
        page.get_by_text("Its best report is number").first.wait_for()
        kept(page, "trial")
        assert "training.learning_rate" in page.inner_text("body")


@pytest.mark.long
@pytest.mark.needs_chromium
def test_the_registered_model_shows_its_card_and_where_it_comes_from(logged, server, page):
    page.goto(f"{server}/#/models/quick/versions/1")
    page.get_by_text("A model of four languages").first.wait_for()
    kept(page, "model")
    text = page.inner_text("body")
    assert "license: mit" not in text
    assert "babeltune.sweep" in text
    page.get_by_role("link", name="quick-1a2b-t0001").first.wait_for()


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_the_view_has_one_sweep_by_its_objective_with_state_and_settings(logged, goal):
    aim, varied = Objective(metric=AIM.metric, goal=goal), ("method", "training.learning_rate")
    page = trials_page(logged[0], "quick", "quick-1a2b", aim, varied)
    client = open_client(logged[0])
    experiment = client.get_experiment_by_name("quick")
    place = f"/#/experiments/{experiment.experiment_id}/runs"
    assert page == f"{place}?workflowType=machine_learning&viewStateShareKey=quick-1a2b"
    state = json.loads(experiment.tags["mlflow.sharedViewState.quick-1a2b"])
    columns = ["tags.`state`", f"metrics.`best/{AIM.metric}`", *(f"params.`{name}`" for name in varied)]
    assert state["selectedColumns"] == state["columnOrder"] == columns
    order = f"{state['orderByKey']} {'ASC' if state['orderByAsc'] else 'DESC'}"
    runs = client.search_runs([experiment.experiment_id], state["searchFilter"], order_by=[order])
    best_first = ["t0001", "t0000", "t0002"] if goal == "maximize" else ["t0002", "t0000", "t0001"]
    assert [run.info.run_name for run in runs] == [*best_first, "t0003"], "the one without a score is last"


def test_steps_are_pairs_and_the_run_says_so(logged):
    from mlflow import MlflowClient

    client = MlflowClient(logged[0], logged[0])
    assert [m.step for m in client.get_metric_history(logged[2][1], AIM.metric)] == [128, 256, 512]
    assert client.get_run(logged[2][1]).data.tags["step_unit"] == "pairs"


def test_a_sweep_that_mlflow_does_not_know_is_an_error(logged):
    with pytest.raises(SweepError, match="has no trial of sweep other-1; `babeltune resume other-1` sends"):
        trials_page(logged[0], "quick", "other-1", AIM, ())


def test_a_promoted_model_tells_mlflow_how_to_load_it_and_keeps_its_name(logged, tmp_path):
    folder = registry.fetch(logged[0], "models:/quick@champion", tmp_path)
    from mlflow.models import Model

    model = Model.load(str(folder))
    assert model.signature.inputs.input_names() == ["sentence"]
    assert model.flavors["python_function"]["loader_module"] == "mlflow.sentence_transformers"
    assert registry.registered_folder(folder) == folder.name
