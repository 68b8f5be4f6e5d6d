"""Zero-shot transfer as XTREME measures it: fine-tuned on English, scored on every language."""
