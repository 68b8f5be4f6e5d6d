"""Small models that tests make: static ones, and exported students around a tiny BERT."""

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer

from babeltune.data.teacher import teacher_folder
from babeltune.data.tokens import train_tokenizer
from babeltune.models.build import build_student
from babeltune.models.vocabulary import Vocabulary
from babeltune.promotion.export import export
from babeltune.schema.records import Teacher, Transformer


def bundled_tokenizer():
    return Tokenizer.from_file(str(teacher_folder(Teacher()) / "tokenizer.json"))


def static_model(folder, rows=None, dim=16):
    """The folder of a static model of the bundled teacher's tokens, with these vectors or random ones."""
    tokenizer = bundled_tokenizer()
    if rows is None:
        rows = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), dim))
    modules = [StaticEmbedding(tokenizer, embedding_weights=rows.astype(np.float32)), Normalize()]
    SentenceTransformer(modules=modules).save(str(folder))
    return folder


def exported_student(place, texts, tokens, **shape):
    """The folder of an untrained student, beside that of its tokenizer of these texts."""
    tokenizer = train_tokenizer(texts, tokens, folder=place / "tokenizer")
    small = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "max_tokens": 40}
    student = Transformer(**{**small, **shape})
    built = build_student(student, Vocabulary(tokens, 0), teacher_dim=None, seed=0)
    export(built, tokenizer, student, place / "student")
    return place / "student"


def card_header(*lines):
    """The header of a promoted model's card, with these lines more."""
    dataset = "{name: everyday fra-eng, type: everyday, config: fra-eng, split: test}"
    results = ["- name: small", "  results:", "  - task: {type: sentence-similarity}", f"    dataset: {dataset}"]
    above = ["---", "language: [en, fr]", "library_name: sentence-transformers", *lines, "model-index:"]
    return "\n".join([*above, *results, "    metrics:", "    - {type: accuracy, value: 0.9292}", "---", ""])
