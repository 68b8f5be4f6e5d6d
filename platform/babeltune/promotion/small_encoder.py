"""Encodes texts with a folder of `babeltune export`. It needs numpy, safetensors and tokenizers alone.

The folder's card carries this code, so it has at most fifteen lines."""

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer


class SmallEncoder:
    """Token vectors as whole numbers, each row with a scale of its own."""

    def __init__(self, folder: str) -> None:
        self.stored = load_file(f"{folder}/model.safetensors")
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.prompt = bytes(self.stored["prompt"]).decode()

    def encode(self, texts: list[str]) -> np.ndarray:
        """Vectors of length 1: float32 [texts, dim]. A text without a known token has zeros."""
        ids = self.tokenizer.encode_batch([self.prompt + text for text in texts], add_special_tokens=False)
        sums = np.vstack([self.rows([]), *(self.stored["scales"][each.ids] @ self.rows(each.ids) for each in ids)])
        return np.asarray(sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12), np.float32)

    def rows(self, ids: list[int]) -> np.ndarray:
        """The numbers of these tokens. A byte holds one of 8 bits, or two of 4 bits above -8."""
        rows: np.ndarray = self.stored["table"][ids]
        return (
            rows
            if rows.dtype == np.int8
            else np.stack([rows & 15, rows >> 4], 2).reshape(len(rows), 2 * rows.shape[1]) - np.float32(8)
        )
