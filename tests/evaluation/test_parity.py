"""mteb's own tasks, LASER's mining and ours say the same of one model, in both directions and whatever languages are
called."""

import numpy as np
import pytest

from babeltune.data.prepared import TextTask
from babeltune.evaluation.evaluate import evaluate_texts
from corpora import bundled
from small_models import exported_student

pytestmark = [pytest.mark.usefixtures("one_thread", "offline"), pytest.mark.slow]


@pytest.fixture(scope="module")
def rows():
    columns = bundled(30, "eng", "fra", "rus", "kor", "jpn")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.fixture(scope="module")
def model(rows, tmp_path_factory):
    from sentence_transformers import SentenceTransformer

    texts = [row[code] for row in rows for code in ("eng", "fra")]
    folder = exported_student(tmp_path_factory.mktemp("model"), texts, 300)
    return SentenceTransformer(str(folder), device="cpu")


def bitext(rows, name, left, right):
    sides = [tuple(row[code] for row in rows) for code in (left[:3], right[:3])]
    languages = {"left_languages": (left,), "right_languages": (right,)}
    return TextTask(name=name, kind="bitext", subset=f"{left}-{right}", left=sides[0], right=sides[1], **languages)


@pytest.mark.filterwarnings("ignore")  # mteb's own
def test_mtebs_tasks_score_as_ours_do(rows, model):
    from benchmarks.mteb_tasks import mteb_scores

    ntrex = [bitext(rows, "ntrex", *pair) for pair in (("fra-CA", "eng"), ("kor", "eng"), ("kor", "fra-CA"))]
    graded = {"left": ntrex[0].left, "right": ntrex[1].left, "scores": tuple(i % 7 / 2 for i in range(len(rows)))}
    sts = TextTask(name="stsb", kind="sts", subset="eng", **graded)
    tasks = [*ntrex, bitext(rows, "tatoeba", "fra", "eng"), sts]
    theirs = mteb_scores(tasks, model)
    ours = evaluate_texts(tasks, lambda texts, _: model.encode(texts))
    assert len(theirs) == 3 * 3 + 2 + 2
    for name, value in theirs.items():
        assert value == pytest.approx(ours[name], abs=1e-6), name
    turned = [(f"{task.subset}/accuracy_forward", f"{task.subset}/accuracy_backward") for task in ntrex]
    assert any(theirs[f"test/ntrex/{there}"] != theirs[f"test/ntrex/{back}"] for there, back in turned)


@pytest.mark.slow
def test_mining_scores_as_lasers_steps_do():
    """On sets that are drawn from a bitext as the benchmark draws them, with vectors that are noisy translations."""
    from benchmarks.parity import _mining, mining_set

    numbers = [str(number) for number in range(300)]
    sides = {"left": (*(f"{n} fra" for n in numbers), "1000 fra"), "right": (*(f"{n} eng" for n in numbers), "0 eng")}
    languages = {"left_languages": ("fra",), "right_languages": ("eng",)}
    task = mining_set(TextTask(name="ntrex", kind="bitext", subset="fra-eng", **sides, **languages))
    assert task.fit is not None
    assert (len(task.gold), len(task.fit.gold)) == (50, 50)
    assert all(task.left[i].split()[0] == task.right[j].split()[0] for i, j in task.gold)
    assert not set(task.left) & set(task.fit.left)

    def unit(texts):
        found = []
        for text in texts:
            number, language = text.split()
            noise = np.random.default_rng((int(number), language == "fra")).normal(size=12)
            row = np.random.default_rng(int(number)).normal(size=12) + 0.8 * noise + 0.5
            found.append(row / np.linalg.norm(row))
        return np.array(found)

    ours = evaluate_texts([task], lambda texts, _: unit(texts).astype(np.float32))
    theirs = {metric: value for metric, _, value in _mining(task, unit)}
    assert len(theirs) == 8
    for metric, value in theirs.items():
        assert 0.3 < value < 1, metric
        assert value == pytest.approx(ours[f"test/bucc/fra-eng/{metric}"], abs=1e-9), metric
    assert theirs["f1_max"] < theirs["f1_max_oracle"]
