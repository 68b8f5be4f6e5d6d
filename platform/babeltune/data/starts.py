"""The model that a student begins from, as a sweep's storage keeps it: a folder named by its content.

A sweep file names a folder, a registered model or a trial (`student.start`). Reading the file pins the name to the
content, `NAME@sha256:0123456789abcdef`, as a revision does. Preparation copies the folder once, and workers get the
copy as they get stores."""

import shutil
from pathlib import Path

from babeltune.data.store import bring
from babeltune.data.teacher import folder_digest
from babeltune.errors import TeacherError
from babeltune.files import draft_of, replace_folder
from babeltune.models.hub import PARTS, model_files
from babeltune.schema.records import Student

PIN = "@sha256:"
DIGITS = 16  # hexadecimal digits of a digest in a pinned name
FETCHED = "fetched"  # the folder of a storage that holds models from elsewhere
TEXTS = ("*.md", "*.jinja")  # files of an exported folder besides `hub.PARTS`


def split_pin(start: str) -> tuple[str, str | None]:
    """A start's name, and the digest that it is pinned to, if it is."""
    name, _, digest = start.partition(PIN)
    return name, digest or None


def digest_of_start(folder: Path) -> str:
    """The first digits of the digest of a model's files."""
    return folder_digest(folder)[:DIGITS]


def pinned(name: str, folder: Path) -> str:
    """The name with the digest of what it means now."""
    return f"{name}{PIN}{digest_of_start(folder)}"


def start_name(student: Student) -> str | None:
    """The pinned name of the model whose tokenizer, and all or some of whose weights, the student begins with."""
    return student.start or student.embeddings_from


def place_of(storage: Path, digest: str) -> Path:
    """Where a storage keeps the start of this digest."""
    return storage / FETCHED / f"start-{digest}"


def keep_start(storage: Path, start: str) -> Path:
    """The folder of a pinned start in the storage, copied there from its name's folder if it is not there yet.

    Raises:
        TeacherError: the start is not pinned, or its files are gone or have changed."""
    name, digest = split_pin(start)
    if digest is None:
        raise TeacherError(f"student.start {name!r} has no digest; read the sweep file again, which adds it")
    copy = place_of(storage, digest)
    bring(copy)
    if copy.is_dir() and digest_of_start(copy) == digest:
        return copy
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise TeacherError(
            f"student.start {name!r} of digest {digest} is not in {storage / FETCHED} any more; submit the sweep file "
            "again, which fetches it"
        )
    if (now := digest_of_start(folder)) != digest:
        raise TeacherError(
            f"student.start {name!r} has changed: its digest is {now}, and this sweep began with {digest}; put the "
            "old files back, or submit a sweep of its own"
        )
    return copy_start(storage, folder)


def copy_start(storage: Path, folder: Path) -> Path:
    """A copy of the model's files in the storage, named by their content, whole or not at all."""
    place = place_of(storage, digest_of_start(folder))
    if place.is_dir() and digest_of_start(place) == digest_of_start(folder):
        return place
    draft = draft_of(place)
    try:
        for path in model_files(folder, (*PARTS, *TEXTS)):
            target = draft / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        replace_folder(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place
