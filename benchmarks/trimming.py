"""The size of a pretrained encoder after `student.trim`, with a check that no vector changes.

all-MiniLM-L6-v2 is cut to the tokens of the bundled corpus of five languages. The vectors of that text are compared
with those of the whole encoder. The exit code is 1 if one differs."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from datasets import disable_progress_bars
from numpy.typing import NDArray

from babeltune.data.stored_arrays import open_ragged
from babeltune.models.encoder import encode_all
from babeltune.models.hub import model_folder
from babeltune.planning.preparation import prepare
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.training.build import make_student

MODEL = "bundled:all-MiniLM-L6-v2"
TEXTS = 2000


def encoded(trim: bool, storage: Path) -> tuple[int, int, NDArray[np.float32]]:
    """Parameters, size of the vocabulary, and the vectors of the first texts."""
    student = (
        f"{{model: {model_folder(MODEL, None, setting='student.model')}, trim: {str(trim).lower()}, max_tokens: 64}}"
    )
    assignments = [f"student={student}", "method=mse_distillation", "config={}", "parameters={}"]
    sweep = read_sweep("search_spaces/quickstart.yaml", assignments=assignments)
    prepared = prepare(sweep, storage)
    encoder = make_student(make_trial(sweep, 0, default_params(sweep)), prepared).eval()
    (tokens,) = prepared.tokens.values()
    ids = np.arange(min(TEXTS, prepared.texts))
    vectors = encode_all(encoder, open_ragged(Path(tokens.train)).take, ids, device="cpu")
    return sum(parameter.numel() for parameter in encoder.parameters()), tokens.vocabulary, np.asarray(vectors)


def main() -> int:
    disable_progress_bars()
    with TemporaryDirectory() as storage:
        whole, trimmed = (encoded(trim, Path(storage)) for trim in (False, True))
    difference = float(np.abs(whole[2] - trimmed[2]).max())
    print(f"parameters {whole[0]:,} to {trimmed[0]:,}, vocabulary {whole[1]:,} to {trimmed[1]:,}")
    print(f"the vectors of {len(whole[2]):,} texts differ by at most {difference:g}")
    return int(difference > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
