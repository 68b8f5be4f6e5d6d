"""LASER and LASER2 (Artetxe and Schwenk 2019; Heffernan et al. 2022) as a folder that sentence-transformers reads.

A released checkpoint holds a BiLSTM over tokens' embeddings, whose states are max-pooled. It is a pickle, which nothing
here loads: `examples/convert_laser.py` opens it as tensors and plain values alone, and calls `write_laser`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from babeltune.errors import TeacherError
from babeltune.models.hub import quiet

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # tokens of fairseq, whose ids in a checkpoint are 1, 2 and 3
UNKNOWN_ID = 3
UNIGRAM, BPE = 1, 2  # kinds of sentencepiece models
CONTROL = 3  # sentencepiece's type of a piece that no text has
PUNCTUATION = (
    (r"\p{C}", " "), (r"\(", " ("), (r"\)", ") "), (r" +", " "), (r"\) (?=[.!:?;,])", ")"),
    (r"\( ", "("), (r" \)", ")"), (r"(?<=\d) %", "%"), (r" :", ":"), (r" ;", ";"), (r"`", "'"), (r"''", ' " '),
    (r"[„“”]", '"'), (r"–", "-"), (r"—", " - "), (r" +", " "), (r"´", "'"), (r"(?<=[a-zA-Z])[‘’](?=[a-zA-Z])", "'"),
    (r"[‘‚’]", '"'), (r"''", '"'), (r"…", "..."), (r"\u00A0«\u00A0", ' "'), (r"\u00A0»\u00A0", '" '),
    (r"«\u00A0?|\u00A0?»", '"'), (r"\u00A0(?=[%:?!;])", ""), (r"(?<=nº|,)\u00A0|\u00A0(?=ºC|cm)", " "),
    (r" +", " "), (r'",', ',"'), (r'"\.', '."'), (r"(?<=\d)\u00A0(?=\d)", "."),
)  # fmt: skip
"""LASER2's normalisation of a text: the Moses rules for punctuation in English, in its order."""


@dataclass(frozen=True, kw_only=True)
class LaserCheckpoint:
    """The parts of a released checkpoint."""

    params: Mapping[str, Any]  # the shape: `embed_dim`, `hidden_size`, `num_layers`, `bidirectional`
    weights: Mapping[str, Tensor]  # `embed_tokens.weight`, and `lstm.` with torch's names of an LSTM
    dictionary: Mapping[str, int]  # piece -> its row of the embeddings


def write_laser(checkpoint: LaserCheckpoint, pieces: Path, folder: Path) -> None:
    """Writes the encoder with the tokens of a sentencepiece model (`laser2.spm`), weights in safetensors.

    Vectors are not normalised, as LASER's are not.

    Raises:
        TeacherError: the checkpoint or the sentencepiece model is none of LASER's."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import LSTM, Pooling, WordEmbeddings
    from transformers import PreTrainedTokenizerFast

    tokenizer, names = _tokenizer(pieces)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)
    lstm = _lstm(checkpoint, LSTM)
    embeddings = WordEmbeddings(fast, _rows(checkpoint, names))
    whole = SentenceTransformer(modules=[embeddings, lstm, Pooling(lstm.get_embedding_dimension(), "max")])
    with quiet():
        whole.save(str(folder), create_model_card=False)


def _lstm(checkpoint: LaserCheckpoint, kind: Any) -> Any:
    params = checkpoint.params
    lstm = kind(
        params.get("embed_dim", 320),
        params.get("hidden_size", 512),
        num_layers=params.get("num_layers", 1),
        bidirectional=params.get("bidirectional", False),
    )
    states = {name.removeprefix("lstm."): each for name, each in checkpoint.weights.items() if name.startswith("lstm.")}
    try:
        lstm.encoder.load_state_dict({name: each.float() for name, each in states.items()})
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise TeacherError(f"the checkpoint's LSTM is not of the shape that it says: {reason}; get it again") from error
    return lstm


def _rows(checkpoint: LaserCheckpoint, names: list[str]) -> Float[Tensor, "pieces width"]:
    """The embedding of each piece; of one that the dictionary lacks, the unknown token's."""
    table = checkpoint.weights["embed_tokens.weight"].float()
    ids = dict(checkpoint.dictionary) | {PAD: 1, END: 2, UNKNOWN: UNKNOWN_ID}
    shared = sum(name in checkpoint.dictionary for name in names)
    if 2 * shared < len(names):
        raise TeacherError(
            f"the dictionary of the checkpoint has {shared} of the {len(names)} pieces of the sentencepiece model; "
            "name the one that was released with it, such as laser2.spm with laser2.pt"
        )
    return table[torch.tensor([ids.get(name, UNKNOWN_ID) for name in names])]


def _tokenizer(path: Path) -> tuple[Tokenizer, list[str]]:
    """The pieces of a text in lower case, and the end; the name of each id."""
    from transformers.convert_slow_tokenizer import generate_merges, import_protobuf

    proto = import_protobuf().ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's own class has no types
        raise TeacherError(
            f"{str(path)!r} is no sentencepiece model ({error}); name one, such as laser2.spm"
        ) from error
    kind = proto.trainer_spec.model_type
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type != CONTROL}
    if kind not in (UNIGRAM, BPE) or UNKNOWN not in scores:
        raise TeacherError(f"{str(path)!r} is no sentencepiece model of unigrams or BPE; name one, such as laser2.spm")
    names = [PAD, END, *scores]
    vocabulary = {name: place for place, name in enumerate(names)}
    if kind == UNIGRAM:
        least = min(scores.values())
        model: models.Model = models.Unigram([(name, scores.get(name, least)) for name in names], vocabulary[UNKNOWN])
    else:
        ids = {name: vocabulary[name] for name in scores}
        model = models.BPE(vocabulary, generate_merges(ids, scores), unk_token=UNKNOWN, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(list(_normalizers(proto.normalizer_spec.precompiled_charsmap)))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, vocabulary[END])]
    )
    return tokenizer, names


def _normalizers(charsmap: bytes) -> Iterator[Any]:
    yield from (normalizers.Replace(Regex(pattern), content) for pattern, content in PUNCTUATION)
    yield normalizers.Lowercase()
    if charsmap:
        yield normalizers.NFKC()
        yield normalizers.Precompiled(charsmap)
    yield normalizers.Replace(Regex(r"\s+"), " ")
    yield normalizers.Strip()
