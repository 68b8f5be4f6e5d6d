"""Trains a translation model on a subset, and scores it on a test file with sacrebleu.

What a filtered corpus is worth is the BLEU of the model that it trains (Tan et al. 2023, table 4). A model from scratch
has the shape of FLORES' supervised baseline (Guzmán et al. 2019, section 4.1: 5 layers, width 512, feed-forward 2048, 2
heads, dropout 0.4, label smoothing 0.2). It is trained for a given number of steps, with a warm-up over the first tenth
and a linear decay. On a CPU the same inputs give the same model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from babeltune.data.tokens import train_tokenizer
from babeltune.data.translation import TranslationModel
from babeltune.errors import DataError, SpecError
from babeltune.files import as_new_files, write_whole
from babeltune.method.masked_lm import IGNORED
from babeltune.models.finetuning import Descent
from babeltune.models.hub import model_folder, quiet
from babeltune.schema.records import Scalar
from babeltune.schema.text import Translation

SCRATCH = "scratch"  # in place of a model: one without pre-training
SMOOTHING = 0.2
Scores = dict[str, Scalar | dict[str, int]]
"""Scores of a translation model by name, their signatures, and how many sentences were not translated."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A translation model and its training."""

    model: str
    """A hub id or folder of a sequence-to-sequence model, which is fine-tuned, or `scratch`."""
    steps: int = 10_000
    batch: int = 64
    """Pairs of a step."""
    learning_rate: float = 1e-3
    """AdamW's, at its highest: FLORES' for `scratch`; a trained model needs less, say 5e-5."""
    max_tokens: int = 128
    """Longer sentences are cut."""
    beams: int = 5
    seed: int = 0
    source_code: str | None = None
    """The tokenizer's `src_lang`: `khm_Khmr` (NLLB), `km` (M2M-100)."""
    target_token: str | None = None
    """The token that a translation begins with: `eng_Latn` (NLLB), `__en__` (M2M-100)."""
    layers: int = 5
    """Layers of the encoder and of the decoder; this and what follows for `scratch` only."""
    width: int = 512
    vocabulary: int = 5_000
    """Size of the one tokenizer for both languages, trained on the largest subset (FLORES: 5,000)."""

    def translation(self, folder: Path) -> Translation:
        """The `Translation` record of the model in `folder`."""
        return Translation(
            text="", original="source", into="target", model=str(folder), source_code=self.source_code,
            target_token=self.target_token, beams=self.beams, max_tokens=self.max_tokens,
        )  # fmt: skip


def starting_model(recipe: Recipe, texts: Sequence[str], folder: Path) -> Path:
    """The folder of the model that every subset starts from; from scratch, it is made in `folder` with a tokenizer
    trained on the texts."""
    if recipe.model != SCRATCH:
        return model_folder(recipe.model, None, setting="--train")
    if recipe.source_code or recipe.target_token:
        raise SpecError("a model from scratch has no language codes; leave out --source-code and --target-token")
    from transformers import AutoTokenizer, MarianConfig, MarianMTModel

    heads = 2
    if recipe.width % (2 * heads):
        raise SpecError(f"--width {recipe.width} is not divisible by {2 * heads}, which {heads} heads need")
    train_tokenizer(texts, recipe.vocabulary, folder=folder, seed=recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.eos_token = tokenizer.sep_token
    tokenizer.save_pretrained(folder)
    config = MarianConfig(
        vocab_size=len(tokenizer), d_model=recipe.width, encoder_layers=recipe.layers, decoder_layers=recipe.layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * recipe.width,
        decoder_ffn_dim=4 * recipe.width, max_position_embeddings=recipe.max_tokens + 2, dropout=0.4,
        attention_dropout=0.2, activation_dropout=0.2, activation_function="relu", scale_embedding=True,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        decoder_start_token_id=tokenizer.cls_token_id, forced_eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(recipe.seed)
        MarianMTModel(config).save_pretrained(folder)
    as_new_files(folder)
    return folder


def train(
    recipe: Recipe,
    start: Path,
    source: Sequence[str],
    target: Sequence[str],
    folder: Path,
    progress: Callable[[int, int, float], None] = lambda step, of, loss: None,
) -> float:
    """Trains the starting model on the pairs and writes it to `folder`; returns the mean loss of the last tenth."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        loaded = TranslationModel(recipe.translation(start), start, "--train")
        model, tokenizer, begin = loaded.model.requires_grad_(True).train(), loaded.tokenizer, loaded.begin
        end = model.generation_config.eos_token_id
        end = end[0] if isinstance(end, list) else end
        if end is None:
            raise DataError(f"--train {recipe.model!r} names no end token in its generation_config.json; add it there")
        sources = tokenizer(list(source), truncation=True, max_length=recipe.max_tokens)["input_ids"]
        targets = tokenizer(text_target=list(target), add_special_tokens=False)["input_ids"]
        front, warm = [] if begin is None else [begin], max(1, recipe.steps // 10)
        labels = [[*front, *ids[: recipe.max_tokens - len(front) - 1], end] for ids in targets]

        def share(step: int) -> float:
            return min((step + 1) / warm, (recipe.steps - step) / (recipe.steps - warm + 1))

        descent = Descent(model, recipe.learning_rate, share, betas=(0.9, 0.98), weight_decay=1e-4)  # FLORES' baseline
        losses, rows = list[float](), list[int]()
        order = torch.Generator().manual_seed(recipe.seed)
        for step in range(1, recipe.steps + 1):
            while len(rows) < recipe.batch:
                rows += torch.randperm(len(sources), generator=order).tolist()
            chosen, rows = rows[: recipe.batch], rows[recipe.batch :]
            ids, mask = padded([sources[row] for row in chosen], tokenizer.pad_token_id)
            expected, _ = padded([labels[row] for row in chosen], IGNORED)
            inputs = {"input_ids": ids, "attention_mask": mask, "labels": expected}
            inputs = {name: values.to(loaded.device) for name, values in inputs.items()}
            losses.append(descent.step(loss_of(model(**inputs).logits, inputs["labels"])))
            if step % warm == 0:
                progress(step, recipe.steps, losses[-1])
        with quiet():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    as_new_files(folder)
    last = losses[-warm:]
    return math.fsum(last) / len(last)


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """[rows, longest] padded on the right, and 1 if there is no padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean label-smoothed cross-entropy over the tokens that are not padding: [pairs, tokens, vocabulary]."""
    flat = logits.flatten(0, 1), labels.flatten()
    return nn.functional.cross_entropy(*flat, ignore_index=IGNORED, label_smoothing=SMOOTHING)


def score_model(recipe: Recipe, folder: Path, source: Sequence[str], target: Sequence[str]) -> Scores:
    """BLEU and chrF of a trained model on a test file, with sacrebleu's signatures; writes `hypotheses.txt` beside it.

    A sentence that is too long, or whose translation does not end, counts as an empty one and is counted."""
    scores = scorers()
    model = TranslationModel(recipe.translation(folder), folder, "--train")
    translations, without = model.translate(source, lambda done: None)
    texts = [text or "" for text in translations]
    write_whole(folder / "hypotheses.txt", "".join(f"{text}\n" for text in texts).encode())
    by_metric: Scores = {"untranslated": without}
    for name, metric in scores.items():
        by_metric[name] = metric.corpus_score(texts, [list(target)]).score
        by_metric[f"{name}_signature"] = str(metric.get_signature())
    return by_metric


class Score(Protocol):
    """A score of sacrebleu's."""

    @property
    def score(self) -> float: ...


class Metric(Protocol):
    """The part of sacrebleu's metrics that is used."""

    def corpus_score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], /) -> Score:
        """The score of all translations together."""

    def get_signature(self) -> object:
        """The signature of a score, as sacrebleu writes it."""


def scorers() -> dict[str, Metric]:
    """sacrebleu's metrics; raises `DataError` if it is not installed."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        words = "sacrebleu, which scores translations, is not installed; pip install 'babeltune[translation]'"
        raise DataError(words) from error
    return {"bleu": BLEU(), "chrf": CHRF()}
