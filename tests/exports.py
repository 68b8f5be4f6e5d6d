"""An exported folder as a trainable student again, for tests that compare both."""

import json

from transformers import AutoTokenizer

from babeltune.models.build import build_student
from babeltune.models.dense import check_modules
from babeltune.models.hub import pooling_of
from babeltune.models.static import is_static
from babeltune.models.vocabulary import Vocabulary
from babeltune.schema.records import Student, Transformer


def json_of(path):
    return json.loads(path.read_text(encoding="utf-8"))


def load_export(folder):
    """The encoder, tokenizer and settings of a folder that `export` wrote."""
    modules = json_of(folder / "modules.json")
    static = is_static(folder)
    if not static:
        check_modules(modules, str(folder))
    kinds = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in modules}
    settings = json_of(folder / "config_sentence_transformers.json")
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    prompts, chosen = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if static:
        truncation = json_of(folder / "tokenizer.json").get("truncation") or {"max_length": Student.max_tokens}
        read = {"kind": "static", "max_tokens": truncation["max_length"]}
    else:
        read = {
            "max_tokens": json_of(folder / "sentence_bert_config.json")["max_seq_length"],
            "pooling": pooling_of(json_of(folder / kinds["Pooling"] / "config.json")),
        }
    student = Transformer(
        model=str(folder),
        **read,
        projection=json_of(folder / kinds["Dense"] / "config.json")["out_features"] if "Dense" in kinds else None,
        normalize="Normalize" in kinds,
        prompt=prompts[chosen] if chosen else "",
    )
    encoder = build_student(student, Vocabulary(len(tokenizer), tokenizer.pad_token_id), teacher_dim=None, seed=0)
    return encoder, tokenizer, student
