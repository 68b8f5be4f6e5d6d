"""Fine-tuning: which tokens count, what is learnt, that it repeats, and each task once from files to a table."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from transformers import AutoModel

from babeltune.apps.transfer import finetune
from babeltune.apps.transfer.finetune import MAX_TOKENS, FineTuning, collate, encode, load_encoder_with_head, loss_of
from babeltune.apps.transfer.formats import Examples, read_examples
from babeltune.cli.documents import document_schema
from babeltune.errors import DataError, TeacherError
from babeltune.method.masked_lm import IGNORED
from small_models import exported_student

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
WORDS = ["unbelievable", "cat", "sat", "on", "mat", "dog", "ran", "far", "extraordinary", "bird"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A promoted student: a sentence-transformers folder around a tiny BERT."""
    texts = ["cat sat on mat", "dog ran far", "bird"] * 4
    return exported_student(tmp_path_factory.mktemp("model"), texts, 60, projection=8)


def tagged(*sentences):
    """Words and the numbers of their labels: a word's length, modulo 3."""
    return Examples(
        inputs=[tuple(words) for words in sentences],
        labels=[tuple(len(word) % 3 for word in words) for words in sentences],
        dropped={},
        digest="",
    )


SENTENCES = [["cat", "unbelievable", "sat"], ["\u200b", "dog"], WORDS * 3]


@pytest.mark.parametrize("max_tokens", [8, 12, 40])
def test_a_words_first_token_alone_counts_and_no_word_is_lost(folder, max_tokens):
    _, tokenizer, _ = load_encoder_with_head(folder, "pos", max_tokens)
    examples = tagged(*SENTENCES)
    pieces = encode(tokenizer, examples, "pos", max_tokens)
    words_of_row = {row: [] for row in range(3)}
    for piece in pieces:
        ids = piece.inputs["input_ids"]
        assert len(ids) <= max_tokens
        labelled = [(ids[i], label) for i, label in enumerate(piece.labels) if label != IGNORED]
        assert len(labelled) == len(piece.words)
        for word, (token, label) in zip(piece.words, labelled, strict=True):
            text = examples.inputs[piece.example][word]
            first = (tokenizer(text, add_special_tokens=False)["input_ids"] or [tokenizer.unk_token_id])[0]
            assert (token, label) == (first, examples.labels[piece.example][word])
            words_of_row[piece.example].append(word)
    assert words_of_row == {row: list(range(len(words))) for row, words in enumerate(SENTENCES)}
    assert len(pieces) > 3


@settings(max_examples=20)
@given(st.lists(st.lists(st.sampled_from([IGNORED, 0, 1, 2]), min_size=4, max_size=4), min_size=1, max_size=3))
def test_the_loss_is_the_mean_cross_entropy_over_labelled_tokens(labels):
    logits = torch.randn(len(labels), 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    terms = []
    for row, numbers in zip(logits.tolist(), labels, strict=True):
        for values, label in zip(row, numbers, strict=True):
            if label != IGNORED:
                terms.append(math.log(sum(map(math.exp, values))) - values[label])
    loss = float(loss_of(logits, torch.tensor(labels)))
    assert loss == pytest.approx(sum(terms) / len(terms)) if terms else math.isnan(loss)


def test_padding_and_continuations_change_no_loss(folder):
    torch.manual_seed(0)
    model, tokenizer, _ = load_encoder_with_head(folder, "pos", 40)
    model.eval()
    pieces = encode(tokenizer, tagged(["unbelievable", "cat"], ["dog", "extraordinary", "on", "mat"]), "pos", 40)

    def losses(rows):
        inputs, labels = collate(tokenizer, rows, model.device)
        return loss_of(model(**inputs).logits, labels).item(), int((labels != IGNORED).sum())

    alone = [losses([piece]) for piece in pieces]
    together, count = losses(pieces)
    assert count == 6
    assert together == pytest.approx(sum(loss * n for loss, n in alone) / 6, rel=1e-5)


@pytest.mark.parametrize("task", ["xnli", "ner"])
def test_the_head_stands_on_the_exported_encoder(folder, task):
    model, *_ = load_encoder_with_head(folder, task, 40)
    exported = AutoModel.from_pretrained(folder).state_dict()
    state = {name.removeprefix(f"{model.base_model_prefix}."): value for name, value in model.state_dict().items()}
    shared = [name for name in exported if "pooler" not in name]
    assert len(shared) > 10
    assert all(torch.equal(exported[name], state[name]) for name in shared)


def test_what_cannot_be_fine_tuned_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match=r"has \d+ positions; lower --max-tokens, 5000"):
        load_encoder_with_head(folder, "xnli", 5000)
    model, _, longest = load_encoder_with_head(folder, "xnli", None)
    assert longest == min(MAX_TOKENS, model.config.max_position_embeddings) < MAX_TOKENS
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(TeacherError, match="cannot be fine-tuned for xnli"):
        load_encoder_with_head(tmp_path, "xnli", 40)
    (tmp_path / "modules.json").write_text('[{"path": "", "type": "x.StaticEmbedding"}]')
    with pytest.raises(TeacherError, match="fine-tuning needs a Transformer"):
        finetune.backbone_folder(tmp_path)


def learnable(path, count=60):
    """Pairs whose label is whether the two sentences begin alike."""
    rows = [f"{WORDS[i % 5]} {WORDS[5 + i % 3]}\t{WORDS[(i // 2) % 5]} far\t" for i in range(count)]
    text = "".join(f"{row}{int(row.split()[0] == row.split()[2])}\n" for row in rows)
    path.write_text("sentence1\tsentence2\tlabel\n" + text)
    return read_examples(str(path), "pawsx", "en")


def test_it_learns_repeats_and_depends_on_the_seed(folder):
    examples = tagged(*[WORDS[i % 4 : i % 4 + 5] for i in range(24)])
    fast = FineTuning(epochs=6, learning_rate=5e-3, batch=8, max_tokens=40)

    def run(seed):
        changed = FineTuning(**{**vars(fast), "seed": seed})
        return finetune.transfer(folder, "pos", examples, {"en": examples}, changed)

    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    one, again, other = run(1), run(1), run(2)
    assert torch.equal(state, torch.random.get_rng_state())
    assert one == again
    assert one.losses != other.losses
    assert one.losses[-1] < 0.3 * one.losses[0]
    assert one.scores["en"]["accuracy"] > 0.95


def test_the_epoch_that_is_best_on_dev_is_scored(folder, tmp_path):
    examples = learnable(tmp_path / "train.tsv")
    outcome = finetune.transfer(
        folder,
        "pawsx",
        examples,
        {"en": examples},
        FineTuning(epochs=4, learning_rate=1e-2, max_tokens=40),
        dev=examples,
    )
    assert len(outcome.dev) == 4
    assert outcome.scores["en"]["accuracy"] == max(outcome.dev)
    torch.manual_seed(0)
    model, tokenizer, _ = load_encoder_with_head(folder, "pawsx", 40)
    pieces, states = encode(tokenizer, examples, "pawsx", 40), []

    def judge():
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return [0.1, 0.9, 0.9, 0.5][len(states) - 1]

    _, judged = finetune.fit(model, tokenizer, pieces, FineTuning(), 4, judge, lambda epoch, of, loss: None)
    assert judged == [0.1, 0.9, 0.9, 0.5]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in model.state_dict().items())
    assert any(not torch.equal(tensor, states[3][name]) for name, tensor in model.state_dict().items())


TRAIN = {
    "xnli": "premise\thypo\tlabel\n" + "cat sat\tdog ran\tneutral\ncat ran\tcat ran\tentailment\n" * 4,
    "pawsx": "id\tsentence1\tsentence2\tlabel\n" + "1\tcat sat\tsat cat\t0\n2\tdog\tdog\t1\n" * 4,
    "pos": "cat\tNOUN\nsat\tVERB\n\nbird\tNOUN\n\n" * 4,
    "ner": "en:dog\tB-PER\nen:cat\tI-PER\nen:ran\tO\n\n" * 4,
}
TEST = {
    "xnli": "cat\tdog\tneutral\nmat\tno label\n" + "dog\tdog\tentailment\n" * 20,
    "pawsx": "sentence1\tsentence2\tlabel\ncat\tcat\t1\nbroken\n" + "dog\tcat\t0\n" * 20,
    "pos": "# text = le chat\n1\tle\t_\tDET\t_\t_\t2\t_\t_\t_\n2\tchat\t_\tNOUN\t_\t_\t0\t_\t_\t_\n\n" * 20
    + "1\tx\n\n",
    "ner": "fr:chat\tB-PER\nfr:dog\tO\n\n" * 20 + "fr:x\n\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(TRAIN))
def test_each_task_runs_from_files_to_a_record(folder, tmp_path, monkeypatch, command, task):
    for name, text in (("train", TRAIN[task]), ("fr", TEST[task])):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    options = "--epochs 2 --batch 4 --max-tokens 24 --learning-rate 1e-3 --on-error drop --out out/record.json"
    words = f"transfer {folder} --task {task} --train train --test en=train --test fr=fr {options}".split()
    record = command.document(*words)
    assert record == json.loads((tmp_path / "out" / "record.json").read_text())
    Draft202012Validator(document_schema("transfer")).validate(record)
    assert record.keys() == document_schema("transfer")["$defs"]["TransferRecord"]["properties"].keys()
    assert set(record["scores"]) == {"en", "fr"}
    main_metric = "accuracy" if task in ("xnli", "pawsx") else "f1"
    english, french = (record["scores"][language][main_metric] for language in ("en", "fr"))
    assert record["average"][main_metric] == pytest.approx((english + french) / 2)
    assert record["english"] == record["scores"]["en"]
    assert record["others"] == record["scores"]["fr"]
    assert record["tests"]["fr"]["dropped"] == {"column count": 1}
    assert record["settings"]["epochs"] == len(record["losses"]) == 2
    if task == "ner":
        assert "without English" in command(*words)[1]
        assert "--test" in command(*words, "--test", "fr=fr")[2]
        assert "is not LANGUAGE=FILE" in command(*words, "--test", "fr")[2]
