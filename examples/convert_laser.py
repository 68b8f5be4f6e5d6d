"""Makes a released LASER checkpoint a folder with safetensors that `teacher.model` and `baselines` take:

    python examples/convert_laser.py laser2.pt laser2.spm laser2

Both files are of https://dl.fbaipublicfiles.com/nllb/laser/. A checkpoint is a pickle. `weights_only` reads tensors and
plain values from it and refuses all else, so it runs no code. babeltune itself never opens it."""

import pickle
import sys
from pathlib import Path

import torch

from babeltune.errors import TeacherError
from babeltune.models.laser import LaserCheckpoint, write_laser


def main(checkpoint: str, pieces: str, folder: str) -> None:
    """Reads the checkpoint and the sentencepiece model, and writes the folder."""
    try:
        parts = torch.load(checkpoint, map_location="cpu", weights_only=True)
        laser = LaserCheckpoint(params=parts["params"], weights=parts["model"], dictionary=parts["dictionary"])
        write_laser(laser, Path(pieces), Path(folder))
    except (OSError, pickle.UnpicklingError, RuntimeError, TypeError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        sys.exit(f"error: {checkpoint!r} is no checkpoint of a LASER BiLSTM ({reason}); name laser2.pt")
    except TeacherError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: convert_laser.py CHECKPOINT.pt PIECES.spm FOLDER")
    main(*sys.argv[1:])
