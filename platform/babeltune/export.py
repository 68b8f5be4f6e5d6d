"""Writes a trained encoder as a sentence-transformers folder, and reads one back.

The folder holds JSON, the tokenizer and safetensors: nothing in it runs code when loaded. It is written in the form
that every sentence-transformers release since 2.3 reads, so that plain `SentenceTransformer(folder).encode(texts)`
gives the encoder's vectors, prompt included.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from babeltune.encoder import Encoder, build_student
from babeltune.errors import CheckpointError
from babeltune.hub import pooling_of, quiet
from babeltune.records import Evaluation, Student

SAFE = frozenset({".json", ".safetensors", ".md", ".txt", ".model", ".jinja"})
"""What an exported folder may hold."""


def as_used(student: Student, evaluation: Evaluation) -> Student:
    """The student as it is scored and handed over: the evaluation prompt is the model's prompt."""
    return student if evaluation.prompt is None else replace(student, prompt=evaluation.prompt)


def export(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase | Path, student: Student, folder: Path, *, card: str = ""
) -> None:
    """Writes `encoder` to `folder`, whole or not at all. `tokenizer` is loaded, or a folder; `card` is its README.

    Raises:
        CheckpointError: the folder exists, or something but text and safetensors would be written.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists already; name a new folder, or remove it first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(encoder, tokenizer, student, draft)
        (draft / "README.md").write_text(card, encoding="utf-8")
        unsafe = [path.name for path in draft.rglob("*") if path.is_file() and path.suffix not in SAFE]
        if unsafe:
            raise CheckpointError(
                f"the export would hold {', '.join(sorted(unsafe))}; only {', '.join(sorted(SAFE))} are allowed"
            )
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load_export(folder: Path) -> tuple[Encoder, PreTrainedTokenizerBase, Student]:
    """The encoder, tokenizer and settings of a folder that `export` wrote.

    Raises:
        CheckpointError: a file is missing.
        TeacherError: the weights are missing or do not fit.
    """
    kinds = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in _read(folder / "modules.json")}
    settings = _read(folder / "config_sentence_transformers.json")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts, chosen = settings.get("prompts") or {}, settings.get("default_prompt_name")
    student = Student(
        model=str(folder),
        max_tokens=_read(folder / "sentence_bert_config.json")["max_seq_length"],
        pooling=pooling_of(_read(folder / kinds["Pooling"] / "config.json")),
        projection=_read(folder / kinds["Dense"] / "config.json")["out_features"] if "Dense" in kinds else None,
        normalize="Normalize" in kinds,
        prompt=prompts[chosen] if chosen else "",
    )
    encoder = build_student(
        student, vocabulary_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, teacher_dim=None, seed=0
    )
    return encoder, tokenizer, student


def _write(encoder: Encoder, tokenizer: PreTrainedTokenizerBase | Path, student: Student, folder: Path) -> None:
    with quiet():
        encoder.backbone.save_pretrained(folder)
    loaded = AutoTokenizer.from_pretrained(tokenizer) if isinstance(tokenizer, Path) else tokenizer
    loaded.save_pretrained(folder)
    width = encoder.backbone.config.hidden_size
    _json(folder / "sentence_bert_config.json", {"max_seq_length": student.max_tokens, "do_lower_case": False})
    modes = {
        f"pooling_mode_{mode}": mode.startswith(encoder.pooling) for mode in ("cls_token", "mean_tokens", "max_tokens")
    }
    _json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **modes})
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if encoder.projection is not None:
        _write_dense(encoder, folder / "2_Dense")
        modules.append(("2_Dense", "Dense"))
    if encoder.normalize:
        path = f"{len(modules)}_Normalize"
        (folder / path).mkdir()
        modules.append((path, "Normalize"))
    _json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
    )
    _json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": {"default": student.prompt} if student.prompt else {},
            "default_prompt_name": "default" if student.prompt else None,
            "similarity_fn_name": "cosine",
        },
    )


def _write_dense(encoder: Encoder, folder: Path) -> None:
    assert encoder.projection is not None
    activation = "activation.Tanh" if encoder.tanh else "linear.Identity"
    linear = encoder.projection
    _json(
        folder / "config.json",
        {
            "in_features": linear.in_features,
            "out_features": linear.out_features,
            "bias": linear.bias is not None,
            "activation_function": f"torch.nn.modules.{activation}",
        },
    )
    weights = {f"linear.{name}": tensor.detach().cpu().contiguous() for name, tensor in linear.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def _json(path: Path, values: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent} is no exported encoder: {path.name} is missing") from error
