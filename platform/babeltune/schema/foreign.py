"""Files of other programs that are given in place of a sweep or cluster file, by their first bytes, ending or keys."""

import re
from collections.abc import Mapping
from pathlib import PurePath

SEARCH = (
    "here values to choose from are {choice: [1, 2]} in `parameters`, ranges {float: [0.1, 0.5]} or {log_float: [1e-4, "
    "1e-2]}, metrics are in `objectives`, the search in `sampler` and `budget`; see search_spaces/quickstart.yaml"
)
TRAINING = (
    "here `student`, `teacher`, `data` and `training` say what is trained; `babeltune init FILES…` writes them for "
    "your "
    "text, and search_spaces/quickstart.yaml is an example"
)
MODEL = "a sweep file names such a folder in `student: {model: FOLDER}` or `teacher: {model: FOLDER}`"
DEPLOYMENT = "a cluster file has `address` and `storage`; clusters/local.yaml is an example"

KEYS: tuple[tuple[str, frozenset[str], str], ...] = tuple(
    (kind, frozenset(keys.split()), advice)
    for kind, keys, advice in (
        ("a W&B sweep", "program parameters", SEARCH),
        ("a W&B sweep", "parameters metric", SEARCH),
        ("a W&B sweep", "parameters early_terminate", SEARCH),
        ("a W&B sweep", "parameters run_cap", SEARCH),
        ("an Optuna study", "study_name", SEARCH),
        ("an Optuna study", "directions", SEARCH),
        ("an Optuna study", "n_trials", SEARCH),
        ("an Optuna distribution", "name attributes", SEARCH),
        ("a Ray Tune experiment", "trial_data", SEARCH),
        ("a Ray Tune experiment", "num_samples", SEARCH),
        ("a Ray Tune experiment", "param_space", SEARCH),
        ("a Ray Tune experiment", "tune_config", SEARCH),
        ("an Axolotl configuration", "base_model micro_batch_size", TRAINING),
        ("an Axolotl configuration", "base_model datasets", TRAINING),
        ("an Axolotl configuration", "base_model sequence_len", TRAINING),
        ("a LLaMA-Factory configuration", "model_name_or_path finetuning_type", TRAINING),
        ("a LLaMA-Factory configuration", "model_name_or_path stage", TRAINING),
        ("a file of Hugging Face TrainingArguments", "per_device_train_batch_size", TRAINING),
        ("a file of Hugging Face TrainingArguments", "num_train_epochs", TRAINING),
        ("a file of Hugging Face TrainingArguments", "output_dir learning_rate", TRAINING),
        ("a PEFT adapter's configuration", "peft_type", TRAINING),
        ("a sentence-transformers configuration", "similarity_fn_name", MODEL),
        ("a sentence-transformers configuration", "__version__ prompts", MODEL),
        ("a sentence-transformers configuration", "word_embedding_dimension", MODEL),
        ("a sentence-transformers configuration", "embedding_dimension pooling_mode", MODEL),
        ("a Transformer's configuration", "model_type", MODEL),
        ("a Transformer's configuration", "architectures", MODEL),
        ("a tokenizer", "tokenizer_class", MODEL),
        ("a tokenizer", "added_tokens model", MODEL),
        ("a model's index of weights", "weight_map", MODEL),
        ("an MLflow model", "flavors", MODEL),
        ("a Ray cluster launcher's file", "provider available_node_types", DEPLOYMENT),
        ("a Ray cluster launcher's file", "provider cluster_name", DEPLOYMENT),
        ("a Kubernetes manifest", "apiVersion kind", DEPLOYMENT),
        ("a Compose file", "services", DEPLOYMENT),
        ("a Hydra configuration", "defaults", TRAINING),
        ("a notebook", "cells nbformat", TRAINING),
    )
)
"""Kinds of files, the keys that only each of them has, and how to go on."""
STRATEGIES = ("grid", "random", "bayes")
"""Values of `method` in a W&B sweep."""
OURS = frozenset({"objectives", "student", "teacher", "training", "data"})
"""Keys of a sweep file that none of the others has."""
PROGRAMS = (
    (re.compile(rb"\b(import|from) optuna\b"), "an Optuna program", SEARCH),
    (re.compile(rb"\b(from ray import|import ray\b|from ray\.tune)"), "a Ray Tune program", SEARCH),
    (re.compile(rb"\b(import|from) wandb\b"), "a W&B program", SEARCH),
    (re.compile(rb"\b(import|from) (sentence_transformers|transformers)\b"), "a training program", TRAINING),
    (re.compile(rb""), "a Python program", TRAINING),
)


def program_words(name: str, raw: bytes) -> str:
    """The kind of a file by its first bytes or its ending, and how to go on; empty for what may be a sweep file."""
    if raw.startswith(b"SQLite format 3\0"):
        return f"a database, such as an Optuna study; {SEARCH}"
    if PurePath(name).suffix == ".py":
        return next(f"{kind}; {advice}" for pattern, kind, advice in PROGRAMS if pattern.search(raw))
    return ""


def foreign_words(values: object) -> str:
    """The kind of a file by its keys, and how to go on; empty for a sweep or cluster file, and for what nobody
    knows."""
    if isinstance(values, list) and values and isinstance(values[0], Mapping):
        modules = {"idx", "name", "path", "type"} <= values[0].keys()
        return f"a sentence-transformers configuration; {MODEL}" if modules else ""
    if not isinstance(values, Mapping) or OURS & values.keys():
        return ""
    if values.get("method") in STRATEGIES and "parameters" in values:
        return f"a W&B sweep; {SEARCH}"
    return next((f"{kind}; {advice}" for kind, keys, advice in KEYS if keys <= values.keys()), "")
