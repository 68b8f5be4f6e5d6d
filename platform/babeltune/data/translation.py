"""Back-translation: a source whose second language a sequence-to-sequence model writes (NLLB, M2M-100, Marian, T5).

Tan et al. 2023, section 3.1, make bitext of monolingual text so. Texts are translated in shards, each a
content-addressed store keyed by its texts, the model and the settings. A sweep that was cut short goes on where it was.
A larger `cap` adds shards, and a second sweep translates nothing. Decoding is greedy or by beams, never sampled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.errors import DataError, nearest
from babeltune.schema.text import Translation

if TYPE_CHECKING:
    import torch

    from babeltune.schema.records import TranslateSource

SHARD = 4_096  # texts of a store
BATCH_TOKENS = 2_048  # padded tokens of the originals that are translated together, times the beams


@dataclass(frozen=True, kw_only=True)
class Translations:
    """Texts and their translations, row by row."""

    originals: list[str]
    translations: list[str]
    description: dict[str, object] = field(default_factory=dict)  # the model and the settings
    dropped: dict[str, int] = field(default_factory=dict)  # texts left out by reason


Translate = Callable[["TranslateSource", Sequence[str]], Translations]
"""Makes the second language of a source whose `translation` is given."""


def translation_problems(
    key: tuple[str | int, ...], how: Translation, files: Mapping[str, Sequence[str]]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The problems of the named languages and text; `known` gives the languages of each source."""
    if how.text not in files:
        allowed = ", ".join(files) or "none"
        yield (
            (*key, "text"),
            f"{how.text!r} is no training source that is read from files; allowed: {allowed}{nearest(how.text, files)}",
        )
    elif how.original not in files[how.text]:
        languages = files[how.text]
        yield (
            (*key, "original"),
            f"{how.original!r} is not in source {how.text!r}; allowed: {', '.join(languages)}"
            f"{nearest(how.original, languages)}",
        )
    if how.into == how.original:
        yield (*key, "into"), f"{how.into!r} is the original's language too; name another"


def draw_texts(source: TranslateSource, texts: Sequence[str], seed: int) -> list[str]:
    """The distinct texts in an order that the seed decides, as many as `cap` lets through."""
    import numpy as np

    from babeltune.data.split import mixed, salt_of
    from babeltune.data.text_keys import sentence_keys

    distinct = list(dict.fromkeys(texts))
    ranks = mixed(sentence_keys(distinct) ^ np.uint64(salt_of(seed, "translate", source.name)))
    return [distinct[i] for i in np.argsort(ranks, kind="stable")[: source.cap]]


@dataclass(frozen=True)
class OwnLanguage:
    """Leaves out the texts that are in another language before the rest is translated (Tan et al., section 3.1)."""

    translate: Translate

    def __call__(self, source: TranslateSource, texts: Sequence[str]) -> Translations:
        """Raises what the translation raises."""
        from babeltune.data.language_id import strangers
        from babeltune.data.texts import Texts

        language = source.translation.original
        labels = strangers(Texts.of(texts), language).tolist()
        translations = self.translate(source, [text for text, label in zip(texts, labels, strict=True) if label < 0])
        left_out = sum(label >= 0 for label in labels)
        return replace(
            translations, dropped={**translations.dropped, **({f"not in {language}": left_out} if left_out else {})}
        )


@dataclass(frozen=True)
class StandIn:
    """Translates nothing: each text gets one of its own in place of a translation, so that a plan can count."""

    seed: int

    def __call__(self, source: TranslateSource, texts: Sequence[str]) -> Translations:
        originals = draw_texts(source, texts, self.seed)
        return Translations(
            originals=originals, translations=[f"{source.translation.into} {text}" for text in originals]
        )


@dataclass(frozen=True)
class Translator:
    """Translates each text once; the stores under `stores` keep what was translated."""

    stores: Path
    seed: int
    progress: Callable[[str, int, int], None]

    def __call__(self, source: TranslateSource, texts: Sequence[str]) -> Translations:
        """Raises `TeacherError` for a model that cannot be had, `DataError` for one that cannot translate."""
        from babeltune.data.store import Contents, build, digest_of_texts
        from babeltune.data.teacher import folder_digest
        from babeltune.models.hub import model_folder

        how = source.translation
        name = f"source {source.name!r}: translation.model"
        folder = model_folder(how.model, how.revision, setting=name)
        keyed = {key: value for key, value in asdict(how).items() if key not in ("text", "model", "revision")}
        description = {"model": folder_digest(folder), **keyed}
        chosen = draw_texts(source, texts, self.seed)
        model: list[TranslationModel] = []
        translations: list[str | None] = []
        reasons: dict[str, int] = {}
        for start in range(0, len(chosen), SHARD):
            part = chosen[start : start + SHARD]

            def write(place: Path, part: list[str] = part, start: int = start) -> Contents:
                if not model:
                    model.append(TranslationModel(how, folder, name))
                shard_translations, dropped = model[0].translate(
                    part, lambda done: self.progress(f"translating {source.name}", start + done, len(chosen))
                )
                document = json.dumps({"translations": shard_translations, "dropped": dropped}, ensure_ascii=False)
                (place / "translations.json").write_text(document, encoding="utf-8")
                return Contents(facts={"translated": len(part)})

            store = build(self.stores, "translations", {"texts": digest_of_texts(part), **description}, write)
            values = json.loads((store / "translations.json").read_text(encoding="utf-8"))
            translations += values["translations"]
            for reason, count in values["dropped"].items():
                reasons[reason] = reasons.get(reason, 0) + count
        pairs = [(text, other) for text, other in zip(chosen, translations, strict=True) if other is not None]
        return Translations(
            originals=[text for text, _ in pairs],
            translations=[other for _, other in pairs],
            description=description,
            dropped=reasons,
        )


class TranslationModel:
    """A loaded sequence-to-sequence model, which translates in evaluation mode, on a GPU if there is one."""

    def __init__(self, how: Translation, folder: Path, name: str) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        from babeltune.models.hub import quiet

        self.how, self.name = how, f"{name} {how.model!r}"
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            with quiet():
                self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
                model = AutoModelForSeq2SeqLM.from_pretrained(
                    folder, use_safetensors=True, trust_remote_code=False, dtype=torch.float32
                )
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"{self.name} cannot be loaded: {reason}; name a sequence-to-sequence model saved as safetensors"
            ) from error
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None and how.max_tokens > positions:
            raise DataError(f"{self.name} has {positions} positions; lower translation.max_tokens, {how.max_tokens}")
        self.model = model.eval().requires_grad_(False).to(self.device)
        if how.source_code is not None:
            self._set_source_code(how.source_code)
        self.begin = None if how.target_token is None else self._token(how.target_token)

    def _set_source_code(self, code: str) -> None:
        if not hasattr(self.tokenizer, "src_lang"):
            raise DataError(f"{self.name}: its tokenizer has no source languages; remove translation.source_code")
        try:
            self.tokenizer.src_lang = code
        except KeyError as error:  # M2M-100
            raise DataError(self._lacks("source_code", code)) from error
        if self.tokenizer.unk_token_id in self.tokenizer("")["input_ids"]:  # NLLB: <unk> in the language's place
            raise DataError(self._lacks("source_code", code))

    def _token(self, token: str) -> int:
        number: int = self.tokenizer.convert_tokens_to_ids(token)
        if number is None or number == self.tokenizer.unk_token_id:
            raise DataError(self._lacks("target_token", token))
        return number

    def _lacks(self, key: str, value: str) -> str:
        special = sorted(map(str, self.tokenizer.all_special_tokens))
        return f"{self.name}: its tokenizer has no {key} {value!r}{nearest(value, special)}"

    def translate(
        self, texts: Sequence[str], progress: Callable[[int], None]
    ) -> tuple[list[str | None], dict[str, int]]:
        """The translations, None if there is none, and how many of these for which reason."""
        ids: list[list[int]] = self.tokenizer([self.how.prefix + text for text in texts], verbose=False)["input_ids"]
        fits = [row for row, tokens in enumerate(ids) if len(tokens) <= self.how.max_tokens]
        translations: list[str | None] = [None] * len(texts)
        dropped = {"too long to translate": len(texts) - len(fits), "unfinished translation": 0, "empty translation": 0}
        done = dropped["too long to translate"]
        for rows in batches({row: len(ids[row]) for row in fits}, BATCH_TOKENS // self.how.beams):
            for row, translation in zip(rows, self._generate([ids[row] for row in rows]), strict=True):
                translations[row] = translation or None
                if not translation:
                    dropped["unfinished translation" if translation is None else "empty translation"] += 1
            done += len(rows)
            progress(done)
        return translations, {reason: count for reason, count in dropped.items() if count}

    def _generate(self, ids: Sequence[list[int]]) -> list[str | None]:
        """One translation for each row of token ids; None if it did not end."""
        import torch

        longest = max(map(len, ids))
        pad = self.tokenizer.pad_token_id
        padded = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in ids], device=self.device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids], device=self.device)
        begin = {} if self.begin is None else {"forced_bos_token_id": self.begin}  # else the model's own stays
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=padded,
                attention_mask=mask,
                do_sample=False,
                num_beams=self.how.beams,
                max_new_tokens=self.how.max_tokens,
                **begin,
                forced_eos_token_id=None,  # a translation that is cut must not look as if it had ended
            )
        ends = self.model.generation_config.eos_token_id
        texts = self.tokenizer.batch_decode(out, skip_special_tokens=True)
        return [" ".join(text.split()) if has_end(row, ends) else None for text, row in zip(texts, out, strict=True)]


def has_end(row: torch.Tensor, ends: int | list[int]) -> bool:
    """Whether a generated row has an end token after its first, which may be one too."""
    return any(bool((row[1:] == end).any()) for end in (ends if isinstance(ends, list) else [ends]))


def batches(lengths: Mapping[int, int], tokens: int) -> Iterator[list[int]]:
    """The keys by length, the longest first, in lists that hold at most `tokens` with their padding, or one key."""
    batch: list[int] = []
    for row in sorted(lengths, key=lambda row: (-lengths[row], row)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
