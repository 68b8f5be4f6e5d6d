"""The frozen teacher, and its store: every unique sentence is forwarded once per sweep, whatever trials read it.

sentence-transformers loads the model; the forward pass is ours. So a prompt is put before a sentence only if the
sweep file says so, and sentences of equal token length run together without padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer

from babeltune.data.arrays import first_places, is_first, parts
from babeltune.data.shards import RunShards, read_texts, run_here
from babeltune.data.store import Array, Contents, build, digest_of_array, digest_of_texts, facts_of, key_of
from babeltune.data.store_shards import ShardWork, array_of, make_shards, record_names, shard_files, write_shard
from babeltune.data.stored_arrays import open_matrix
from babeltune.data.texts import Texts, text_hashes
from babeltune.errors import StoreError, TeacherError
from babeltune.memory import give_back_memory
from babeltune.models.dense import trained_pooler
from babeltune.models.hub import PARTS, ROUTED, file_digest, model_files, model_folder, quiet
from babeltune.products import use_onednn
from babeltune.schema.records import FrozenModel, Teacher
from babeltune.stages import Count, uncounted

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_TOKENS = 2048  # tokens per forward pass: activations of this many stay in a CPU core's cache
SHARD_ROWS = (2_048, 16_384)
"""Fewest and most sentences of a shard on average: loading the teacher costs as much as encoding some thousand."""
CENTERED_BY = 2_048
"""Tokens whose mean is the centre. Of multilingual-e5-small it is .92 long, and those of two halves differ by .02."""
SENTENCE_COST = 16  # the cost of a sentence besides its characters, in characters


class TeacherModel:
    """A loaded teacher: sentences in, float32 vectors out, in evaluation mode and without gradients."""

    def __init__(self, teacher: FrozenModel, model: Any, device: str) -> None:
        self._teacher = teacher
        self._model = model
        self._device = torch.device(device)
        self.normalized = teacher.normalize
        self.dim = int(model.get_embedding_dimension())
        self.truncated = 0
        """Sentences cut at `teacher.max_tokens` so far."""

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[len(texts), dim] in the order of the texts; L2-normalised if the teacher's record says so."""
        vectors = np.empty((len(texts), self.dim), np.float32)
        # Batches hold sentences of one token length, up to `BATCH_TOKENS` tokens, so nothing is padded.
        for rows in self._batches(texts):
            features = self._model.preprocess([texts[row] for row in rows], prompt=self._teacher.prompt or None)
            features = {k: v.to(self._device) if isinstance(v, torch.Tensor) else v for k, v in features.items()}
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._teacher.precision == "bf16"):
                batch_vectors = self._model(features)["sentence_embedding"]
            batch_vectors = batch_vectors.float()
            if self._teacher.normalize:
                batch_vectors = torch.nn.functional.normalize(batch_vectors, dim=-1)
            vectors[rows] = batch_vectors.cpu().numpy()
        return vectors

    def save(self, folder: Path) -> None:
        """Writes the teacher, as it encodes here, as a sentence-transformers folder."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Normalize

        more = [Normalize()] if self._teacher.normalize else []
        prompts = {"default": self._teacher.prompt} if self._teacher.prompt else None
        whole = SentenceTransformer(
            modules=[*self._model, *more],
            prompts=prompts,
            default_prompt_name="default" if prompts else None,
            similarity_fn_name="cosine",
        )
        with quiet():
            whole.save(str(folder), create_model_card=False)

    def _batches(self, texts: Sequence[str]) -> Iterator[NDArray[np.intp]]:
        if not len(texts):
            return
        whole = self.lengths([self._teacher.prompt + text for text in texts])
        lengths = np.minimum(whole, self._teacher.max_tokens)
        self.truncated += int((whole > lengths).sum())
        order = np.argsort(lengths, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
            size = max(1, BATCH_TOKENS // max(1, int(lengths[group[0]])))
            for start in range(0, len(group), size):
                yield group[start : start + size]

    def lengths(self, texts: list[str]) -> NDArray[np.int64]:
        """The tokens of each text before it is cut."""
        tokenizer = tokenizer_of(self._model)
        if isinstance(tokenizer, Tokenizer):  # a static table's, which also cuts
            tokenizer.no_truncation()
            counts = [len(encoding) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            tokenizer.enable_truncation(self._teacher.max_tokens)
        else:
            encoding = tokenizer(
                texts,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,  # about long sentences, which are counted and cut by the caller
            )
            counts = [len(ids) for ids in encoding["input_ids"]]
        return np.array(counts, np.int64)


class Mixture:
    """Loaded encoders whose vectors are put side by side, so that a cosine is the weighted mean of theirs."""

    def __init__(self, models: Sequence[TeacherModel], weights: Sequence[float]) -> None:
        self._models, self._weights = models, weights
        self.dim = sum(model.dim for model in models)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[len(texts), dim] of length 1."""
        return side_by_side([model.encode(texts) for model in self._models], self._weights)


def side_by_side(sides: Sequence[NDArray[np.floating]], weights: Sequence[float]) -> NDArray[np.float32]:
    """Unit vectors [rows, sum of the widths] of unit vectors: sqrt(w_k / sum w) x_k, one encoder k after the other."""
    shares = np.sqrt(np.array(weights) / sum(weights))
    return np.hstack([share * side.astype(np.float32) for share, side in zip(shares, sides, strict=True)], dtype="f4")


def load_teacher(teacher: Teacher, device: str = "cpu") -> TeacherModel | Mixture:
    """The teacher's encoder, or all that stand side by side, as `load_encoder` loads each."""
    models = [load_encoder(each, device) for each in teacher.encoders]
    return Mixture(models, [each.weight for each in teacher.encoders]) if teacher.beside else models[0]


def load_encoder(teacher: FrozenModel, device: str = "cpu") -> TeacherModel:
    """The encoder, read from safetensors only and running no code of its repository.

    Raises `TeacherError` for a model that is missing, altered, out of reach, or has no pooling if none is given."""
    folder = teacher_folder(teacher)
    try:
        with quiet():
            modules = _modules(teacher, folder)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise TeacherError(
            f"teacher.model {teacher.model!r} cannot be loaded: {error}; it needs a Transformer, a "
            "StaticEmbedding or an LSTM saved as safetensors that runs no code of its own"
        ) from error
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(modules=modules, device=device)
    _cut_at(teacher.max_tokens, teacher, model)
    use_onednn(model)
    model.eval().requires_grad_(False)
    if teacher.center:
        model.extend(_centering(TeacherModel(teacher, model, device), tokenizer_of(model))).to(device)
    return TeacherModel(teacher, model, device)


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of a sentence-transformers model; of an LSTM's word embeddings the one in their wrapper."""
    return getattr(model.tokenizer, "tokenizer", model.tokenizer) if is_recurrent(model) else model.tokenizer


def is_recurrent(model: Any) -> bool:
    """Whether it is an LSTM on word embeddings, such as LASER."""
    from sentence_transformers.sentence_transformer.modules import WordEmbeddings

    return isinstance(model[0], WordEmbeddings)


def token_texts(tokenizer: Any, ids: Iterable[int]) -> list[str]:
    """The text of each token, alone; empty of special tokens."""
    return [tokenizer.decode([token], skip_special_tokens=True).removeprefix("##").strip() for token in map(int, ids)]


def _centering(model: TeacherModel, tokenizer: Any) -> list[Any]:
    """The modules that take the model's mean vector away."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    # A mean of its own tokens is the same wherever the model is loaded, and whatever text a sweep has.
    size = tokenizer.get_vocab_size() if isinstance(tokenizer, Tokenizer) else len(tokenizer)
    texts = token_texts(tokenizer, np.linspace(0, size - 1, CENTERED_BY))
    mean = model.encode(list(dict.fromkeys(filter(None, texts)))).mean(0, dtype=np.float64)
    width, bias = model.dim, torch.from_numpy(-mean).float()
    dense = Dense(width, width, activation_function=torch.nn.Identity(), init_weight=torch.eye(width), init_bias=bias)
    return [*([Normalize()] if model.normalized else []), dense.requires_grad_(False)]


def _modules(teacher: FrozenModel, folder: Path) -> list[Any]:
    """Transformer, pooling and what else the folder lists, less the normalisation, which the record decides."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Dense,
        Normalize,
        Pooling,
        Router,
        StaticEmbedding,
        Transformer,
        WordEmbeddings,
    )

    # Weights saved in half precision would otherwise run in it.
    model_kwargs = {"use_safetensors": True, "dtype": torch.float32, "trust_remote_code": False}
    if (folder / "modules.json").exists():
        whole = SentenceTransformer(
            str(folder), device="cpu", trust_remote_code=False, local_files_only=True, model_kwargs=model_kwargs
        )
        modules = list(whole)
        if any(isinstance(module, Router) for module in modules):
            raise TeacherError(f"teacher.model {teacher.model!r} {ROUTED}")
        while isinstance(modules[-1], Normalize):
            modules.pop()
    elif teacher.pooling == "model":
        raise TeacherError(
            f"teacher.model {teacher.model!r} is not a sentence-transformers model, so it does not say how to pool; "
            "set teacher.pooling to mean, cls, max or pooler"
        )
    else:
        modules = [Transformer(str(folder), model_kwargs=model_kwargs)]
    if isinstance(modules[0], StaticEmbedding | WordEmbeddings) and teacher.pooling == "model":
        return modules
    if not isinstance(modules[0], Transformer):
        raise ValueError(f"with pooling {teacher.pooling!r} its first module is {type(modules[0]).__name__}")
    if teacher.pooling != "model":
        transformer = modules[0]
        width, pooler = transformer.get_embedding_dimension(), teacher.pooling == "pooler"
        modules = [transformer, Pooling(width, pooling_mode="cls" if pooler else teacher.pooling)]
        if pooler:
            linear = trained_pooler(folder, transformer.auto_model.config, f"teacher.model {teacher.model!r}")
            modules.append(Dense(width, width, init_weight=linear.weight, init_bias=linear.bias))
    return modules


def _cut_at(tokens: int, teacher: FrozenModel, model: Any) -> None:
    """Lets the model cut its texts at `tokens` tokens, if it has positions; a table and an LSTM have none."""
    if isinstance(model.tokenizer, Tokenizer):
        model.tokenizer.enable_truncation(tokens)
        return
    config = None if is_recurrent(model) else model[0].auto_model.config
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and tokens > positions:
        raise TeacherError(f"teacher.max_tokens is {tokens}, but {teacher.model!r} has {positions} positions; lower it")
    model.max_seq_length = tokens


def teacher_folder(teacher: FrozenModel) -> Path:
    """The folder with the teacher's files: the verified bundled one, a local one, or a snapshot from the hub."""
    return model_folder(teacher.model, teacher.revision, setting="teacher.model")


def model_digest(teacher: FrozenModel) -> str:
    """SHA-256 over the names and bytes of the model's weights, configuration and tokenizer."""
    return folder_digest(teacher_folder(teacher))


def folder_digest(folder: Path) -> str:
    """SHA-256 over the names and bytes of the model files in a folder, among them a graph's weights."""
    files = model_files(folder, (*PARTS, "*.onnx"))
    return key_of({str(path.relative_to(folder)): file_digest(path, path.stat().st_mtime_ns) for path in files})


# The store


def build_teacher_store(
    root: Path,
    texts: Sequence[str],
    teacher: Teacher,
    *,
    exact: bool = False,
    run_shards: RunShards = run_here,
    progress: Count = uncounted,
) -> Path:
    """The folder of the teacher's vectors: fp16 (`exact`: fp32), row i belongs to `texts[i]`; open it with
    `stored_arrays.open_matrix`.

    The texts are unique. Shards hold sentences of similar length and cost about the same each. The fact `forwarded`
    counts the sentences that went through the teacher, `truncated` those that were cut at its `max_tokens`.

    Raises `TeacherError` for a teacher that cannot be loaded, `StoreError` for one that cannot be written."""
    texts = Texts.of(texts)
    different = int(np.count_nonzero(is_first(first_places(text_hashes(texts)))))
    if different != len(texts):
        raise StoreError(f"{len(texts)} texts for the teacher are only {different} different ones; pass each once")
    dtype = "<f4" if exact else "<f2"
    shared = {"texts": digest_of_texts(texts), "dtype": dtype}
    # The width is not known before the model is loaded; most teachers have at most 1024 dimensions.
    store_bytes = len(texts) * 1024 * np.dtype(dtype).itemsize

    def store_of(encoder: FrozenModel) -> Path:
        write = partial(_write, texts=texts, teacher=encoder, dtype=dtype, run_shards=run_shards, progress=progress)
        settings = _deciding_settings(encoder) | shared
        return build(root, "teacher", settings, write, bytes_needed=store_bytes, resumable=True)

    def write_mixture(folder: Path) -> Contents:
        return _write_side_by_side(folder, [store_of(each) for each in teacher.encoders], teacher, len(texts), dtype)

    if not teacher.beside:
        return store_of(teacher.encoders[0])
    mixture = {"encoders": [_deciding_settings(one) | {"weight": one.weight} for one in teacher.encoders], **shared}
    return build(root, "teacher", mixture, write_mixture, bytes_needed=store_bytes * len(teacher.encoders))


def _deciding_settings(encoder: FrozenModel) -> dict[str, object]:
    """The settings of an encoder that decide its vectors."""
    names = ("prompt", "pooling", "normalize", "max_tokens", "precision", *(["center"] if encoder.center else []))
    return {"model": model_digest(encoder), **{name: getattr(encoder, name) for name in names}}


def _write_side_by_side(folder: Path, stores: Sequence[Path], teacher: Teacher, rows: int, dtype: str) -> Contents:
    """The vectors of several stores, side by side."""
    matrices, facts = [open_matrix(store) for store in stores], [facts_of(store) for store in stores]
    weights = [each.weight for each in teacher.encoders]
    with (folder / "rows.bin").open("wb") as file:
        for part in parts(rows):
            sides = [matrix.rows(np.arange(part.start, part.stop)) for matrix in matrices]
            side_by_side(cast("list[NDArray[np.floating]]", sides), weights).astype(dtype).tofile(file)
    width = sum(matrix.width for matrix in matrices)
    return Contents(
        arrays={"rows": Array(dtype, width, (("rows.bin", rows),))},
        facts={name: sum(int(each[name] or 0) for each in facts) for name in ("forwarded", "truncated", "dim")},
    )


def _write(
    folder: Path, texts: Texts, teacher: FrozenModel, dtype: str, run_shards: RunShards, progress: Count
) -> Contents:
    lengths = texts.lengths()
    sequence = np.argsort(-lengths, kind="stable")
    work = ShardWork(
        encode_shard,
        lambda source, out: (teacher, source, out, dtype),
        run_shards,
        progress,
        "the teacher encoded",
        gpu=True,
    )
    records = make_shards(folder, texts, _of_equal_cost(sequence, lengths), work)
    order = np.empty(len(texts), "<i8")
    order[sequence] = np.arange(len(texts))
    order_file = f"order-{digest_of_array(order)[:16]}.bin"
    order.tofile(folder / order_file)
    rows = array_of(records, "rows", dtype)
    return Contents(
        arrays={"rows": rows, "order": Array("<i8", 0, ((order_file, len(texts)),))},
        facts={"forwarded": len(texts), "truncated": sum(record.truncated for record in records), "dim": rows.width},
        files=shard_files(records),
        shard_records=record_names(records),
    )


def _of_equal_cost(sequence: NDArray[np.intp], lengths: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """The sentences, ordered by length, in shards of about the same cost. None has more than the most sentences."""
    if not len(sequence):
        return []
    rows = int(np.clip(len(sequence) // 64, *SHARD_ROWS))
    count = -(-len(sequence) // rows)
    cost = np.cumsum(lengths[sequence] + SENTENCE_COST)
    ends = np.searchsorted(cost, cost[-1] * np.arange(1, count) / count)
    cost_groups = [group for group in np.split(sequence, ends) if len(group)]
    return [piece for group in cost_groups for piece in np.array_split(group, -(-len(group) // SHARD_ROWS[1]))]


def encode_shard(teacher: FrozenModel, texts_file: str, out: str, dtype: str = "<f2") -> int:
    """Writes the shard `out`: the vectors of the texts in a JSON file, as `dtype`; returns how many were forwarded.

    Runs in any process that sees the file, on CUDA if there is one."""
    texts = read_texts(texts_file)
    model = _loaded(teacher, "cuda" if torch.cuda.is_available() else "cpu")
    truncated_before = model.truncated
    vectors = model.encode(texts).astype(dtype)
    if not np.isfinite(vectors).all():
        raise TeacherError(
            f"teacher.model {teacher.model!r} gives vectors that are not finite as {np.dtype(dtype)}; "
            "set teacher.normalize to true, or use another model"
        )
    write_shard(Path(out), texts, truncated=model.truncated - truncated_before, rows=vectors)
    give_back_memory()
    return len(vectors)


@lru_cache(maxsize=1)
def _loaded(teacher: FrozenModel, device: str) -> TeacherModel:
    """The teacher of this process's shards, loaded once."""
    return load_encoder(teacher, device)
