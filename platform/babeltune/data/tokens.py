"""Tokens are computed once per sweep: the student's tokenizer, trained on the corpus or loaded, and its store.

A token store holds the ids of every text, prompt and special tokens included and cut at `student.max_tokens`, without
padding: what a packed batch reads. It is in shards: each has the ids of its texts end to end, and where a text begins.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from babeltune.data.shards import RunShards, read_texts, run_here
from babeltune.data.starts import split_pin, start_name
from babeltune.data.store import Contents, build, digest_of_texts, key_of
from babeltune.data.store_shards import ShardWork, array_of, make_shards, record_names, shard_files, write_shard
from babeltune.data.texts import Texts
from babeltune.errors import DataError, TeacherError
from babeltune.files import version
from babeltune.models.hub import model_folder, tokenizer_folder
from babeltune.schema.records import Student, Transformer
from babeltune.stages import Count, uncounted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4 of a tokenizer trained here
TRAINING_TEXTS = 100_000  # a tokenizer is trained on at most this many texts, drawn with a seed
SHARD_ROWS = (1_024, 65_536)
"""Fewest and most texts of a shard: a small corpus is cut into `SHARDS`, so that its count moves. Large shards keep the
number of files small: by Linux's default a process maps at most 65,530."""
SHARDS = 8  # shards of a corpus that is neither too small nor too large for them
log = logging.getLogger(__name__)

# A word with the blank before it and an apostrophe after it, a number, or a run of punctuation. Japanese has no blanks
# between words, so a run ends where the script changes, which is where most words end. Without that a large vocabulary
# holds whole phrases: after 60,000 pairs of the bundled text a static student finds 5 % of the Japanese translations
# with 16,000 tokens, and 93 % with it.
_JAPANESE = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_PIECE = (
    r"▁?\p{Han}+|▁?\p{Hiragana}+|▁?[\p{Katakana}ー]+|"
    rf"▁?[\p{{L}}\p{{M}}&&[^{_JAPANESE}]]+['’]?|▁?\p{{N}}+|▁?[^▁\p{{L}}\p{{M}}\p{{N}}]+|▁"
)


def train_tokenizer(
    texts: Sequence[str], vocabulary: int, *, folder: Path, seed: int = 0, lowercase: bool = False
) -> Path:
    """The folder, now holding a tokenizer trained on the texts that transformers' `AutoTokenizer` loads.

    Byte-pair encoding after NFKC, within words, numbers and runs of punctuation; text keeps its case, as XLM-R's and
    LaBSE's does, unless `lowercase`. On 20,000 to 100,000 sentences of five languages it gave 3-7 % fewer tokens than a
    unigram model, trained 8 times faster, and, unlike it, to the same bytes every time. Above `TRAINING_TEXTS` texts a
    seeded sample is read. A small corpus may give fewer tokens than asked for: `len(tokenizer)` is the number.

    Raises `DataError` when there is no text, or the vocabulary cannot hold the special tokens."""
    if vocabulary <= len(SPECIAL):
        raise DataError(f"student.vocabulary is {vocabulary}; it needs more than {len(SPECIAL)}, say 16000")
    if not any(texts):
        raise DataError("there is no text to train the tokenizer on; check data.train")
    if len(texts) > TRAINING_TEXTS:
        chosen = sorted(random.Random(seed).sample(range(len(texts)), TRAINING_TEXTS))
        texts = Texts.of(texts).at(np.array(chosen))[:]
    tokenizer = _untrained(lowercase)
    alphabet = commonest_characters(tokenizer, texts, max(1, (vocabulary - len(SPECIAL)) // 2))
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() < vocabulary:
        log.info("the corpus gave %d tokens of the %d asked for", tokenizer.get_vocab_size(), vocabulary)
    from transformers import PreTrainedTokenizerFast

    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


def commonest_characters(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[str]:
    """At most `limit` characters of the normalized texts, the commonest, of two as common the one with the lower code
    point. The trainer's own limit takes any of those, another at each run."""
    counts = Counter({"▁": len(texts)})
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text).replace(" ", "▁"))
    return sorted(sorted(counts), key=lambda character: -counts[character])[:limit]


def _untrained(lowercase: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
    blanks = normalizers.Replace(Regex(r"\s+"), " ")
    case = [normalizers.Lowercase()] if lowercase else []
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *case, blanks, normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(split=False), pre_tokenizers.Split(Regex(_PIECE), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def build_tokenizer(
    root: Path, texts: Sequence[str], vocabulary: int, *, seed: int = 0, lowercase: bool = False
) -> Path:
    """The folder of a tokenizer trained on these texts: a store, so it is trained once; raises as `train_tokenizer`."""
    description = {
        "texts": digest_of_texts(texts),
        "vocabulary": vocabulary,
        "seed": seed,
        "training_texts": TRAINING_TEXTS,
        "pipeline": _untrained(lowercase).to_str(),
        "alphabet": "by count, then by code point",
    }

    def write(folder: Path) -> Contents:
        train_tokenizer(texts, vocabulary, folder=folder, seed=seed, lowercase=lowercase)
        return Contents(facts={"vocabulary": Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()})

    return build(root, "tokenizer", description, write, bytes_needed=vocabulary * 100)


def take_tokenizer(root: Path, model: Path) -> Path:
    """The folder of a model's own tokenizer, copied into a store, where every worker and a later export find it."""
    tokenizer = load_tokenizer(Transformer(), model)
    described = {"json": tokenizer.backend_tokenizer.to_str(), "special": sorted(tokenizer.all_special_tokens)}
    description = {"model": key_of({**described, "pad": tokenizer.pad_token})}

    def write(folder: Path) -> Contents:
        tokenizer.save_pretrained(folder)
        return Contents(facts={"vocabulary": len(tokenizer)})

    return build(root, "tokenizer", description, write)


def tokenizer_key(student: Student, corpus_digest: str) -> str:
    """Equal for students that read the same tokens: same tokenizer, prompt and length. 16 hexadecimal digits.

    All students of a sweep have the same teacher, so `teacher` names one vocabulary among the keys of a `Prepared`."""
    if (start := start_name(student)) is not None:
        tokenizer: dict[str, object] = {"start": split_pin(start)[1] or start}
    elif student.model is None:
        tokenizer = {"vocabulary": student.vocabulary, "corpus": corpus_digest}
        tokenizer |= {"lowercase": True} if student.lowercase else {}
    else:
        tokenizer = {"model": student.model, "revision": student.revision}
        tokenizer |= {"trimmed": corpus_digest} if student.trim else {}
        tokenizer |= {"most": student.trim} if limit_of(student) else {}
    bare = {} if has_special_tokens(student) else {"special": False}
    return key_of({**tokenizer, "prompt": student.prompt, "max_tokens": student.max_tokens, **bare})[:16]


def limit_of(student: Student) -> int | None:
    """The most tokens that a trimmed tokenizer may have; None: all that the text uses."""
    return None if isinstance(student.trim, bool) else student.trim


def has_special_tokens(student: Student) -> bool:
    """Whether the student reads special tokens: sentence-transformers' `StaticEmbedding` adds none."""
    return student.kind != "static"


def load_tokenizer(student: Student, folder: Path | None) -> PreTrainedTokenizerFast:
    """The student's own tokenizer, or the one in the folder for a student from scratch or a trimmed one.

    Raises `TeacherError` for a model that cannot be found or has no fast tokenizer."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if student.model is not None and not student.trim:
        folder = tokenizer_folder(model_folder(student.model, student.revision, setting="student.model"))
    if folder is None:
        raise TeacherError(
            "a student without student.model needs the folder of a tokenizer trained on the corpus, and a trimmed one "
            "that of its own"
        )
    name = str(folder) if student.trim else student.model or str(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).splitlines()[0]
        if "backend tokenizer" in reason:  # a list of what could be installed follows
            reason = "it has a slow one only, without a tokenizer.json"
        raise TeacherError(
            f"no tokenizer can be loaded from {name!r}: {reason}; name a model that has one, or "
            "leave student.model out to train a student from scratch"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TeacherError(
            f"the tokenizer of {name!r} has no tokenizer.json, so it cannot encode fast; use another model"
        )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise TeacherError(
            f"the tokenizer of {name!r} has no tokens but {', '.join(tokenizer.all_special_tokens)}: its folder lacks "
            "tokenizer.json; save the tokenizer there, or use another model"
        )
    return tokenizer


def bare_tokenizer(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy of its fast core, which neither pads nor cuts."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    return backend


@dataclass(frozen=True)
class TokenCut:
    """How a text is made into a row of token ids."""

    prompt: str  # the tokens before every text
    max_tokens: int | None
    """The most ids of a row, special tokens included; an empty text has just these. None: a text is not cut."""
    special: bool = True  # whether there are special tokens


def build_token_store(
    root: Path,
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    cut: TokenCut,
    *,
    run_shards: RunShards = run_here,
    progress: Count = uncounted,
) -> Path:
    """The folder of the texts' token ids: row i is `prompt + texts[i]`; open it with `stored_arrays.open_ragged`.

    Ids are uint16 if the vocabulary allows, else int32. The fact `truncated` counts the texts that
    were cut."""
    backend = bare_tokenizer(tokenizer)
    values_type = "<u2" if len(tokenizer) <= 1 << 16 else "<i4"
    full = {
        "texts": digest_of_texts(texts),
        "tokenizer": key_of({"json": backend.to_str()}),
        "prompt": cut.prompt,
        "max_tokens": cut.max_tokens,
        "dtype": values_type,
        **({} if cut.special else {"special": False}),
    }
    if cut.max_tokens is not None:
        backend.enable_truncation(cut.max_tokens)

    def write(folder: Path) -> Contents:
        return _write_tokens(folder, Texts.of(texts), backend, cut, values_type, run_shards, progress)

    store_bytes = len(texts) * (8 + 32 * np.dtype(values_type).itemsize)
    return build(root, "tokens", full, write, bytes_needed=store_bytes, resumable=True)


def _write_tokens(
    folder: Path, texts: Texts, backend: Tokenizer, cut: TokenCut, dtype: str, run_shards: RunShards, progress: Count
) -> Contents:
    tokenizer = folder / "tokenizer.json"
    backend.save(str(tokenizer))
    rows = int(np.clip(-(-len(texts) // SHARDS), *SHARD_ROWS))
    work = ShardWork(
        tokenize_shard,
        lambda source, out: (str(tokenizer), source, out, cut.prompt, cut.special, dtype),
        run_shards,
        progress,
        "tokenized",
    )
    cuts = (np.arange(start, min(start + rows, len(texts))) for start in range(0, len(texts), rows))
    records = make_shards(folder, texts, cuts, work)
    tokenizer.unlink()
    values = array_of(records, "values", dtype)
    truncated = sum(record.truncated for record in records)
    return Contents(
        arrays={"values": values, "offsets": array_of(records, "offsets", "<i8")},
        facts={"sentences": len(texts), "tokens": values.rows, "truncated": truncated},
        files=shard_files(records),
        shard_records=record_names(records),
    )


def tokenize_shard(tokenizer_file: str, texts_file: str, out: str, prompt: str, special: bool, dtype: str) -> int:
    """Writes the shard `out`: the token ids of the texts in a JSON file; returns how many texts there were."""
    backend = _loaded(tokenizer_file, *version(Path(tokenizer_file)))
    texts = read_texts(texts_file)
    encodings = backend.encode_batch_fast([prompt + text for text in texts], add_special_tokens=special)
    ids = [encoding.ids for encoding in encodings]
    values = np.fromiter(chain.from_iterable(ids), dtype)
    offsets = np.cumsum([0, *map(len, ids)], dtype="<i8")
    longest = (backend.truncation or {}).get("max_length")
    cut = sum(bool(e.overflowing) for e, row in zip(encodings, ids, strict=True) if len(row) == longest)
    write_shard(Path(out), texts, truncated=cut, values=values, offsets=offsets)
    return len(texts)


@lru_cache(maxsize=1)
def _loaded(file: str, *_: int) -> Tokenizer:
    """The tokenizer of this process's shards, loaded once for each `version` of its file. Large ones take a second."""
    return Tokenizer.from_file(file)
