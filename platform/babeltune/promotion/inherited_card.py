"""The card of a folder that was made from another model: that model's header, and its sections that stay true."""

import re
from pathlib import Path

CARD = "README.md"
LIBRARY = "sentence-transformers"
NOT_STATED = "not stated"  # the licence of a source of text that nobody has named
KEPT = ("Training text", "Limits")  # sections of a promoted model's card, with the licences of the training text


def inherited(source: Path, body: str, *, loads: bool) -> str:
    """The text of a card: `body` under the header of the model in `source`, and that model's sections `KEPT`.

    `loads`: whether sentence-transformers opens the new folder. If not, the header does not say so. A model without a
    card, or with a broken header, gives nothing."""
    import yaml
    from huggingface_hub import ModelCard

    path = source / CARD
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    whole = "\n".join([body, *filter(None, (section(text, name) for name in KEPT))])
    if not text.startswith("---"):
        return whole
    try:
        data = ModelCard(text).data
    except (ValueError, yaml.YAMLError):
        return whole
    if not loads:
        data["library_name"] = None
        data["tags"] = [tag for tag in data.get("tags") or [] if tag != LIBRARY] or None
    return f"---\n{data.to_yaml()}\n---\n\n{whole}"


def section(card: str, name: str) -> str:
    """The section of a card's text with this title, with the title; empty if there is none."""
    section = re.search(rf"^## {re.escape(name)}$.*?(?=^## |\Z)", card, re.MULTILINE | re.DOTALL)
    return "" if section is None else section[0]
