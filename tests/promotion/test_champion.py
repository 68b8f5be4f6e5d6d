"""Real models against one another: the verdicts, the alias, and what happens when the champion changes in between."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from babeltune.cli import app
from babeltune.data.eval_sets import read_eval
from babeltune.errors import PromotionError
from babeltune.files import sha256_of
from babeltune.planning.sweep_file import read_data
from babeltune.promotion import promote as promotion
from babeltune.promotion.candidate import export_model, find_candidate
from babeltune.promotion.decisions import read_decisions
from babeltune.promotion.evaluate import evaluate_model
from babeltune.promotion.gates import Decision
from babeltune.promotion.promote import promote
from babeltune.promotion.sealed_test_log import read_openings, record_opening
from babeltune.schema.records import Promotion
from babeltune.sweep.state.leaderboard import winner
from babeltune.tracking import registry
from babeltune.tracking.registry import champion_of, find_run
from babeltune.training.checkpoint import checkpoint_folder, read_reports, write_reports
from made_sweeps import rewrite_ledger
from registering import register
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("one_scoring_process")
LINEAGE = {"babeltune.sweep": "another-0123456789", "babeltune.trial": "t0000", "babeltune.report": "1"}


@pytest.fixture(scope="module")
def models(copy_of, tmp_path_factory):
    """Two exports of the finished sweep's winner: as it is, and with its words shuffled."""
    place = tmp_path_factory.mktemp("models")
    _, folder, cluster = copy_of(place / "storage")
    candidate = find_candidate(folder.id, Path(cluster.storage))
    export_model(candidate, place / "whole")
    shutil.copytree(place / "whole", place / "damaged")
    shuffle_words(max((place / "damaged").rglob("model.safetensors"), key=lambda p: p.stat().st_size))
    return {"whole": place / "whole", "damaged": place / "damaged"}


def shuffle_words(path):
    """Gives every token the vector of another."""
    tensors = load_file(path)
    words = next(name for name in tensors if "word_embeddings" in name)
    tensors[words] = tensors[words].flip(0).contiguous()
    save_file(tensors, path, {"format": "pt"})


def crown(cluster, folder, model, name="searched", tags=LINEAGE):
    """Makes a folder the champion."""
    run = find_run(cluster.mlflow, "searched", folder.id, 0)
    before = champion_of(cluster.mlflow, name, "champion")
    return register(cluster.mlflow, name, model, run, "champion", tags, replaces=before and before.version)


def test_an_equal_challenger_is_a_tie_and_a_better_one_is_promoted(copied_home, models):
    from typer.testing import CliRunner

    sweep, folder, cluster = copied_home
    equal_version = crown(cluster, folder, models["whole"])
    result = CliRunner().invoke(app, ["promote", folder.id, "--json"])
    assert result.exit_code == 0, result.output
    equal = json.loads(result.stdout)
    assert equal["verdict"] == "tie"
    assert all(cell["difference"] == 0 for cell in equal["contest"]["cells"])
    assert equal["folder"] == equal["registered"] == ""
    assert champion_of(cluster.mlflow, "searched", "champion").version == equal_version
    assert not list((Path(cluster.storage) / "models").rglob("*.safetensors"))
    crown(cluster, folder, models["damaged"])
    folder.write("sweep.json", replace(sweep, promotion=Promotion(margin=0.2)))
    dry = promote(folder.id, cluster, dry_run=True)
    assert (dry.verdict, dry.registered) == ("promote", ""), dry.reasons
    better = promote(folder.id, cluster)
    assert better.verdict == "promote", better.reasons
    assert better.contest.overall[0].low > 0
    assert "version 3" in better.registered
    assert champion_of(cluster.mlflow, "searched", "champion").version == "3"
    card = (Path(better.folder) / "README.md").read_text(encoding="utf-8")
    assert "## Compared with models:/searched@champion (version 2)" in card
    assert any("was no sealed test of the champion's sweep" in reason for reason in better.reasons)
    again = promote(folder.id, cluster)
    assert again.verdict == "tie"
    assert "this very checkpoint" in again.reasons[1]
    assert again.test == {}, "nothing is opened to compare a model with itself"
    decisions = [(each.decision, each.dry_run) for each in read_decisions(folder)[0]]
    assert decisions[1:] == [(dry, True), (better, False), (again, False)], "the report reads what was decided"


def test_a_worse_challenger_is_refused_with_exit_code_3(copied_home, models):
    """A trial that lost what it had learned, and says so: its report tells what its checkpoint scores."""
    from typer.testing import CliRunner

    _, folder, cluster = copied_home
    best = winner(folder)
    trial = folder.trial(int(best.name[1:]))
    place = checkpoint_folder(trial, best.best)
    shuffle_words(place / "student.safetensors")
    manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["student.safetensors"] = sha256_of(place / "student.safetensors")
    (place / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    name = f"{folder.id}/{best.name}"
    honest = {k: v for k, v in promote(name, cluster).dev.items() if not k.endswith("xsim_flipped")}
    noted = [replace(r, metrics=honest if r.index == best.best else {}) for r in read_reports(trial)]
    write_reports(trial, noted)
    metrics = {report.index: report.metrics for report in noted}
    fields = {"event": "report", "number": int(best.name[1:])}
    rewrite_ledger(
        folder, lambda line: {**line, "metrics": metrics[line["index"]]} if fields.items() <= line.items() else line
    )
    before = crown(cluster, folder, models["whole"])
    result = CliRunner().invoke(app, ["promote", name, "--json"])
    assert result.exit_code == 3, result.output
    decision = json.loads(result.stdout)
    assert decision["verdict"] == "refuse"
    assert decision["contest"]["overall"][0]["high"] < 0
    assert any("worse" in reason for reason in decision["reasons"])
    result = CliRunner().invoke(app, ["promote", name, "--dry-run"])
    assert (result.exit_code, "dry run: this is what would be decided" in result.output) == (3, True)
    assert champion_of(cluster.mlflow, "searched", "champion").version == before


def test_without_sealed_tests_the_comparison_is_on_dev_and_says_so(copied, models):
    sweep, folder, cluster = copied
    folder.write("sweep.json", replace(sweep, data=replace(sweep.data, test=())))
    crown(cluster, folder, models["whole"])
    decision = promote(folder.id, cluster)
    assert decision.verdict == "tie"
    assert decision.contest.on == "dev"
    assert any("without sealed tests" in r and "best of 3 trials" in r for r in decision.reasons)
    assert read_openings(Path(cluster.storage)) == []


def test_an_alias_that_moved_in_between_is_left_alone(copied, models, monkeypatch):
    sweep, folder, cluster = copied
    crown(cluster, folder, models["damaged"])
    folder.write("sweep.json", replace(sweep, promotion=Promotion(margin=0.2)))
    carried_out = promotion.register_model

    def late(*arguments):
        crown(cluster, folder, models["whole"])
        return carried_out(*arguments)

    monkeypatch.setattr(promotion, "register_model", late)
    with pytest.raises(PromotionError, match="was version 1 and is now version 2: another promotion came in between"):
        promote(folder.id, cluster)
    assert champion_of(cluster.mlflow, "searched", "champion").version == "2"


def test_an_alias_that_moves_right_after_is_noticed(copied, models, monkeypatch):
    _, folder, cluster = copied
    crown(cluster, folder, models["damaged"])
    crown(cluster, folder, models["whole"])
    champion_of = registry.champion_of
    answers = iter(["2", "1"])

    def looked(*arguments):
        return replace(champion_of(*arguments), version=next(answers))

    monkeypatch.setattr(registry, "champion_of", looked)
    run = find_run(cluster.mlflow, "searched", folder.id, 0)
    with pytest.raises(PromotionError, match="is now version 1"):
        register(cluster.mlflow, "searched", models["whole"], run, "champion", {}, replaces="2")


def test_two_promotions_at_once_wait_for_one_another(copied, monkeypatch):
    import threading

    _, folder, cluster = copied
    inside, most, begun, record = [], [], [], promotion.recorded_run

    def recorded(*arguments):
        run = record(*arguments)
        begun.append(run)
        return run

    def slow(candidate, *_, **__):
        inside.append(candidate)
        most.append(len(inside))
        wait_until(lambda: len(begun) == 3)
        inside.pop()
        return Decision(verdict="tie", reasons=(), sweep=folder.id, trial="t0000", report=1)

    monkeypatch.setattr(promotion, "recorded_run", recorded)

    monkeypatch.setattr(promotion, "decided", slow)
    threads = [threading.Thread(target=promote, args=(folder.id, cluster)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert most == [1, 1, 1]


def test_a_dry_run_in_the_middle_of_a_promotion_of_the_same_trial_disturbs_nothing(copied, monkeypatch):
    _, folder, cluster = copied
    weighed, drafts = promotion.weigh, []

    def interrupted(candidate, draft, *more):
        drafts.append(draft)
        if len(drafts) == 1:
            assert promote(folder.id, cluster, dry_run=True).verdict == "promote"
        return weighed(candidate, draft, *more)

    monkeypatch.setattr(promotion, "weigh", interrupted)
    decision = promote(folder.id, cluster)
    assert decision.verdict == "promote", decision.reasons
    assert len(set(drafts)) == 2
    assert [path.name for path in Path(decision.folder).parent.iterdir()] == [Path(decision.folder).name]


def test_openings_of_one_text_count_together_whoever_opens_it(copied, models, tiny_file):
    _, folder, cluster = copied
    first = evaluate_model(str(models["whole"]), str(tiny_file), cluster, test=True)
    assert not first.warnings
    other = tiny_file.parent / "other_name.yaml"
    text = tiny_file.read_text(encoding="utf-8")
    other.write_text(text.replace("name: everyday_test", "name: elsewhere").replace("name: tiny", "name: else"))
    again = evaluate_model(f"{folder.id}/t0000", str(other), cluster, test=True)
    assert "opened 2 times, for 2 models" in again.warnings[0]
    decision = promote(folder.id, cluster, dry_run=True)
    assert decision.openings == 3
    assert any("opened 3 times, for 2 models" in reason for reason in decision.reasons)
    lines = read_openings(Path(cluster.storage))
    assert len(lines) == 3
    assert all(line["time"] and line["user"] and line["digests"] for line in lines)
    renamed = tiny_file.parent / "another_name"
    shutil.copytree(models["whole"], renamed)
    same = evaluate_model(str(renamed), str(tiny_file), cluster, test=True)
    assert "opened 4 times, for 2 models" in same.warnings[0], "a model is known by its weights"


def test_a_sealed_text_that_is_scored_as_a_dev_set_is_recorded_as_an_opening(copied, models, tiny_file, tmp_path):
    _, _, cluster = copied
    section = tiny_file.read_text(encoding="utf-8")
    section = section[section.index("data:") : section.index("student:")]
    dev, test = section.index("  dev:"), section.index("  test:")
    renamed = tmp_path / "renamed.yaml"
    renamed.write_text(section[:dev] + section[test:].replace("  test:", "  dev:").replace("everyday", "mine"))
    evaluation = evaluate_model(str(models["whole"]), str(renamed), cluster, test=False)
    assert "dev/mine/accuracy" in evaluation.scores
    assert "mine of data.dev is a sealed test of a sweep" in evaluation.warnings[0]
    assert len(read_openings(Path(cluster.storage))) == 1
    assert not evaluate_model(str(models["whole"]), str(tiny_file), cluster, test=False).warnings
    assert len(read_openings(Path(cluster.storage))) == 1


def test_an_opening_is_recorded_where_the_machine_has_no_name_for_its_user(tmp_path, tiny_file, monkeypatch):
    data, root = read_data(tiny_file)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    record_opening(tmp_path, "m", tmp_path, read_eval(data.test, root))
    assert read_openings(tmp_path)[0]["user"] == "uid 54321"


def test_nothing_that_a_worker_can_reach_holds_a_sealed_sentence(copied):
    """The stores, the sweep's folder and the trials' assignments; token stores are read back as text."""
    from babeltune.data.stored_arrays import open_ragged
    from babeltune.data.tokens import load_tokenizer
    from babeltune.promotion.candidate import dev_texts, sealed_tests

    sweep, folder, cluster = copied
    candidate = find_candidate(folder.id, Path(cluster.storage))
    dev = {text for task in dev_texts(candidate.prepared) for side in (task.left, task.right) for text in side}
    sealed = {text for rows in sealed_tests(candidate) for texts in rows.columns.values() for text in texts} - dev
    assert len(sealed) > 300
    files = [p for p in Path(cluster.storage).rglob("*") if p.is_file() and p.suffix not in (".safetensors", ".npy")]
    assert {"texts.arrow", "trial.json", "prepared.json", "results.jsonl"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        text = content.decode("utf-8", "replace")
        texts = [text, json.dumps(json.loads(text), ensure_ascii=False)] if path.suffix == ".json" else [text]
        leaked = [sentence for sentence in sealed if any(sentence in text for text in texts)]
        assert not leaked, (path, leaked[:3])
    (tokens,) = candidate.prepared.tokens.values()
    tokenizer = load_tokenizer(sweep.student, Path(tokens.tokenizer))
    rows = open_ragged(Path(tokens.evaluation))
    assert len(rows) == candidate.prepared.texts
    decoded = {tokenizer.decode(rows.take(np.array([row]))[0], skip_special_tokens=True) for row in range(len(rows))}
    ids = {tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) for text in sealed}
    assert not decoded & ids


@pytest.mark.parametrize("content", [b'{"time": "2026-01', b"", b"[]\n"])
def test_a_test_is_evaluated_although_the_only_opening_was_cut_off(copied_home, models, tiny_file, command, content):
    _, _, cluster = copied_home
    (Path(cluster.storage) / "openings.jsonl").write_bytes(content)
    code, output, words = command("evaluate", models["whole"], "--with", tiny_file, "--test", "--json")
    assert code == 0, words
    assert "test/everyday/accuracy" in json.loads(output)
    assert "warning" not in words
    assert len(read_openings(Path(cluster.storage))) == 1
