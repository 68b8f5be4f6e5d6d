"""Fine-tunes a classification head and its encoder on English, and predicts the labels of other languages.

The settings are those of XTREME's scripts (google-research/xtreme, `scripts/train_xnli.sh`, `train_pawsx.sh`,
`train_udpos.sh`, `train_panx.sh`); heads are transformers' own for the architecture, as in XTREME."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from babeltune.apps.transfer.formats import LABELS, TAGGED, Examples, Task
from babeltune.apps.transfer.scores import MAIN, score
from babeltune.data.translation import batches
from babeltune.errors import DataError, TeacherError
from babeltune.method.masked_lm import IGNORED
from babeltune.models.finetuning import Descent
from babeltune.models.hub import quiet

if TYPE_CHECKING:
    from jaxtyping import Float, Int

EPOCHS: dict[Task, int] = {"xnli": 5, "pawsx": 5, "pos": 10, "ner": 10}  # epochs of each task, as in XTREME's scripts
MAX_TOKENS = 128  # tokens of a text, as in XTREME's scripts
EVALUATION_TOKENS = 8_192  # padded tokens that are scored together


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How the head and the encoder are trained; XTREME's for models of base size."""

    epochs: int | None = None
    """Over the English training file; `EPOCHS` if absent."""
    learning_rate: float = 2e-5
    """AdamW's at the start, without weight decay; it falls linearly to 0, without warm-up. Large models: 3e-5."""
    batch: int = 32
    """Sentences of a step (XTREME: 8 in each of 4 accumulated passes). Gradients are clipped at norm 1."""
    max_tokens: int | None = None
    """Longer pairs are cut, longer sentences of words go on in a further piece. Absent: XTREME's 128, or as many as a
    smaller model takes."""
    seed: int = 1
    """Seed of the head, the order and dropout."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The scores of a fine-tuned model."""

    scores: dict[str, dict[str, float]]
    """Language -> metric -> value."""
    losses: list[float]
    """The training loss, mean over each epoch's steps."""
    dev: list[float]
    """The main metric on the dev file after each epoch; empty without one."""


@dataclass(frozen=True, kw_only=True)
class ExampleFile:
    """A file of examples that was read."""

    path: str
    sha256: str
    rows: int
    dropped: dict[str, int]
    """Reason -> rows that are left out."""


@dataclass(frozen=True, kw_only=True)
class DevText(ExampleFile):
    """The English dev file."""

    scores: list[float]
    """The main metric after each epoch."""


@dataclass(frozen=True, kw_only=True)
class TransferRecord:
    """The outcome of `transfer`."""

    task: str
    model: str
    model_digest: str
    """SHA-256 over the model's files."""
    settings: FineTuning
    train: ExampleFile
    dev: DevText | None
    tests: dict[str, ExampleFile]
    """Language -> its file."""
    losses: list[float]
    """The training loss, mean over each epoch's steps."""
    scores: dict[str, dict[str, float]]
    """Language -> metric -> value."""
    average: dict[str, float]
    """The mean of each metric over the languages."""
    english: dict[str, float] | None
    others: dict[str, float] | None
    """The mean without English."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One row of a batch: a text, or a part of a long sentence, as tokens with its labels."""

    inputs: dict[str, list[int]]
    labels: list[int]  # a pair has one. A sentence has one for each token, and `IGNORED` if no word begins.
    example: int
    words: list[int]  # the words of a tagged sentence whose first tokens are here, in order


def transfer(
    folder: Path,
    task: Task,
    train: Examples,
    tests: Mapping[str, Examples],
    settings: FineTuning,
    *,
    dev: Examples | None = None,
    progress: Callable[[int, int, float], None] = lambda epoch, of, loss: None,
) -> Outcome:
    """Fine-tunes the encoder of a model's folder on `train`, and scores it on every language of `tests`.

    With a `dev` file the weights after the epoch that is best on it are scored (XTREME: the best of checkpoints at
    fixed steps), without one those after the last. On a CPU the same inputs give the same numbers. Raises
    `TeacherError` for a model that cannot be fine-tuned."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model, tokenizer, longest = load_encoder_with_head(backbone_folder(folder), task, settings.max_tokens)
        model.to(device)

        def scored(examples: Examples) -> dict[str, float]:
            pieces = encode(tokenizer, examples, task, longest)
            predicted = predict(model, tokenizer, pieces, [len(row) for row in examples.labels])
            names = LABELS[task]
            expected, labels = ([[names[i] for i in row] for row in rows] for rows in (examples.labels, predicted))
            return score(task, expected, labels)

        judge = (lambda: scored(dev)[MAIN[task]]) if dev is not None else None
        pieces = encode(tokenizer, train, task, longest)
        losses, judged = fit(model, tokenizer, pieces, settings, settings.epochs or EPOCHS[task], judge, progress)
        return Outcome(scores={name: scored(test) for name, test in tests.items()}, losses=losses, dev=judged)


def backbone_folder(folder: Path) -> Path:
    """Where the transformers part of a sentence-transformers folder is; the folder itself if it is not one."""
    listed = folder / "modules.json"
    if not listed.exists():
        return folder
    first = json.loads(listed.read_text(encoding="utf-8"))[0]
    if first["type"].rsplit(".", 1)[-1] != "Transformer":
        raise TeacherError(f"{folder} begins with {first['type']}; fine-tuning needs a Transformer")
    return folder / str(first["path"])


def load_encoder_with_head(folder: Path, task: Task, max_tokens: int | None) -> tuple[Any, Any, int]:
    """The encoder under a new head, drawn from torch's random state, the tokenizer, and where inputs are cut."""
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

    kind = AutoModelForTokenClassification if task in TAGGED else AutoModelForSequenceClassification
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, padding_side="right")
            model, loaded = kind.from_pretrained(
                folder,
                num_labels=len(LABELS[task]),
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TeacherError(f"{folder} cannot be fine-tuned for {task}: {reason}; name another model") from error
    inside = f"{model.base_model_prefix}."
    absent = sorted(key for key in loaded["missing_keys"] if key.startswith(inside) and "pooler" not in key)
    if absent:
        words = f"lacks {absent[0]} and {len(absent) - 1} more weights of its encoder; save it again"
        raise TeacherError(f"{folder} {words}")
    if not tokenizer.is_fast:
        raise TeacherError(f"{folder} has no fast tokenizer, which tells the tokens of each word; save one with it")
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:
        if "roberta" in model.config.model_type:
            positions -= model.config.pad_token_id + 1  # it counts positions from there
        if max_tokens is not None and max_tokens > positions:
            raise DataError(f"{folder} has {positions} positions; lower --max-tokens, {max_tokens}")
    return model, tokenizer, max_tokens or min(MAX_TOKENS, positions or MAX_TOKENS)


# --- Tokens and labels ---------------------------------------------------------------------------------------------


def encode(tokenizer: Any, examples: Examples, task: Task, max_tokens: int) -> list[Piece]:
    """The examples as rows of tokens with labels."""
    if task in TAGGED:
        return _encode_words(tokenizer, examples, max_tokens)
    left, right = map(list, zip(*examples.inputs, strict=True))
    encoded = tokenizer(left, right, truncation="longest_first", max_length=max_tokens)
    return [
        Piece(inputs=inputs, labels=list(labels), example=row, words=[])
        for row, (inputs, labels) in enumerate(zip(_rows(encoded), examples.labels, strict=True))
    ]


def _encode_words(tokenizer: Any, examples: Examples, max_tokens: int) -> list[Piece]:
    """A word's label stands at its first token. Words that give no token become the unknown token, as in XTREME."""
    unknown = tokenizer.unk_token or "?"
    distinct = list(dict.fromkeys(word for words in examples.inputs for word in words))
    ids = tokenizer(distinct, add_special_tokens=False)["input_ids"]
    without_token = {word for word, encoded in zip(distinct, ids, strict=True) if not encoded}
    encoded = tokenizer(
        [[unknown if word in without_token else word for word in words] for words in examples.inputs],
        is_split_into_words=True,
        truncation=True,
        max_length=max_tokens,
        return_overflowing_tokens=True,
    )
    samples: list[int] = encoded.pop("overflow_to_sample_mapping")
    seen: set[tuple[int, int]] = set()
    pieces = []
    for row, (example, inputs) in enumerate(zip(samples, _rows(encoded), strict=True)):
        labels, words = [], []
        for word in encoded.word_ids(row):
            first = word is not None and (example, word) not in seen
            labels.append(examples.labels[example][word] if first else IGNORED)
            if first:
                seen.add((example, word))
                words.append(word)
        if words:  # else a piece of nothing but the rest of a long word
            pieces.append(Piece(inputs=inputs, labels=labels, example=example, words=words))
    return pieces


def _rows(features: Mapping[str, list[list[int]]]) -> list[dict[str, list[int]]]:
    return [dict(zip(features, row, strict=True)) for row in zip(*features.values(), strict=True)]


def collate(tokenizer: Any, pieces: Sequence[Piece], device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    """The rows padded on the right, and their labels: [rows], or [rows, tokens] of words."""
    padded = tokenizer.pad({name: [p.inputs[name] for p in pieces] for name in pieces[0].inputs}, return_tensors="pt")
    if not pieces[0].words:
        labels = torch.tensor([piece.labels[0] for piece in pieces])
    else:
        width = padded["input_ids"].shape[1]
        labels = torch.tensor([[*piece.labels, *[IGNORED] * (width - len(piece.labels))] for piece in pieces])
    return {name: values.to(device) for name, values in padded.items()}, labels.to(device)


def loss_of(logits: Float[Tensor, "*rows labels"], labels: Int[Tensor, "*rows"]) -> Float[Tensor, ""]:
    """The mean cross-entropy over what has a label."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


# --- Training and prediction ---------------------------------------------------------------------------------------


def fit(
    model: Any,
    tokenizer: Any,
    pieces: Sequence[Piece],
    settings: FineTuning,
    epochs: int,
    judge: Callable[[], float] | None,
    progress: Callable[[int, int, float], None],
) -> tuple[list[float], list[float]]:
    """Trains all weights; returns each epoch's mean loss and judgement. The best judged weights stay, else the last."""
    order = torch.Generator().manual_seed(settings.seed)
    steps = epochs * math.ceil(len(pieces) / settings.batch)
    descent = Descent(model, settings.learning_rate, lambda step: 1 - step / steps)
    losses, judged, best = list[float](), list[float](), dict[str, Tensor]()
    for epoch in range(1, epochs + 1):
        model.train()
        step_losses = []
        for rows in torch.split(torch.randperm(len(pieces), generator=order), settings.batch):
            inputs, labels = collate(tokenizer, [pieces[row] for row in rows.tolist()], model.device)
            step_losses.append(descent.step(loss_of(model(**inputs).logits, labels)))
        losses.append(math.fsum(step_losses) / len(step_losses))
        if judge is not None:
            judged.append(judge())
            if judged[-1] > max(judged[:-1], default=-1.0):
                best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        progress(epoch, epochs, losses[-1])
    if best:
        model.load_state_dict(best)
    return losses, judged


@torch.inference_mode()
def predict(model: Any, tokenizer: Any, pieces: Sequence[Piece], widths: Sequence[int]) -> list[list[int]]:
    """The most probable labels of each example: one of a pair, one for each of a sentence's words (`widths`)."""
    model.eval()
    tags = [[0] * width for width in widths]
    lengths = {row: len(piece.inputs["input_ids"]) for row, piece in enumerate(pieces)}
    for rows in batches(lengths, EVALUATION_TOKENS):
        chosen = [pieces[row] for row in rows]
        inputs, labels = collate(tokenizer, chosen, model.device)
        best = model(**inputs).logits.argmax(dim=-1)
        for piece, predicted, expected in zip(chosen, best, labels, strict=True):
            if piece.words:
                for word, label in zip(piece.words, predicted[expected != IGNORED].tolist(), strict=True):
                    tags[piece.example][word] = label
            else:
                tags[piece.example] = [int(predicted)]
    return tags
