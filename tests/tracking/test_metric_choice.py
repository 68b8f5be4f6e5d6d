from babeltune.tracking.metric_choice import MetricChoice

NAMES = ["dev/mean_cosine", *(f"dev/ntrex/l{n}-eng/accuracy" for n in range(60)), "system/cpu", "train/loss"]


def test_objectives_and_the_loss_come_before_single_languages():
    choice = MetricChoice(["dev/ntrex/accuracy"], 5)
    choice.see([*NAMES, "dev/ntrex/accuracy", "best/dev/ntrex/accuracy"])
    assert {"best/dev/ntrex/accuracy", "dev/ntrex/accuracy", "train/loss", "dev/mean_cosine"} < choice.chosen
    assert len(choice.chosen) == 5
    assert "dev/ntrex/l59-eng/accuracy" in choice.left_out
    names = set(choice.chosen)
    choice.see(["train/another"])
    assert choice.chosen == names, "what a run has shown so far stays, and nothing joins late"
    choice.see(["dev/ntrex/accuracy"])
    assert choice.of({"dev/ntrex/accuracy": 1.0, "train/another": 2.0}) == {"dev/ntrex/accuracy": 1.0}


def test_all_metrics_are_kept_if_asked():
    choice = MetricChoice(["dev/ntrex/accuracy"], None)
    choice.see(NAMES)
    assert (choice.chosen, choice.left_out) == (set(NAMES), set())
