"""Files that are whole or not there, and how to know one again."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import fcntl
import glob
import hashlib
import itertools
import json
import logging
import math
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, overload

from babeltune.errors import SpecError, StorageError
from babeltune.machine import lives, this_process

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None
    """Whatever JSON can hold."""
    JsonObject: TypeAlias = dict[str, JsonValue]

log = logging.getLogger(__name__)
LOCK_TIMEOUT_S = 60.0
"""Seconds within which another process must have changed a file that it has locked. It takes milliseconds."""
DRAFT = re.compile(r"\..+\.([0-9a-f]{12}-[0-9]+-[0-9]+)-[0-9a-f]{8}", re.DOTALL)
"""The name of a draft (`draft_of`), with the process that writes it."""
LOCKLESS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error numbers of a file system that has no locks, such as a Lustre that is mounted without them."""
SEAM = 256  # bytes before a reader's offset that are compared before it reads what follows
AT_CURRENT_FOLDER, EXCHANGE = -100, 2  # constants of `renameat2` in Linux


def version(path: Path) -> list[int]:
    """Another value after each change of the file, as JSON keeps it; `FileNotFoundError` if there is none."""
    stat = path.stat()
    return [stat.st_mtime_ns, stat.st_size, stat.st_ino]


def draft_of(path: Path) -> Path:
    """Where this process writes what will be at `path`. `babeltune clean` removes it once the process is gone."""
    return path.with_name(f".{_beginning(path)}.{this_process()}-{uuid.uuid4().hex[:8]}")


def _beginning(path: Path) -> str:
    """As much of a name as fits into 255 bytes with a process's identity."""
    return os.fsencode(path.name)[:150].decode(errors="ignore")


def writer_of(draft: Path) -> str | None:
    """The process that wrote the draft; None for what is no draft."""
    name = DRAFT.fullmatch(draft.name)
    return name and name[1]


def remove_left(path: Path) -> None:
    """Removes drafts of `path` whose process is gone."""
    for draft in path.parent.glob(f".{glob.escape(_beginning(path))}.*"):
        if lives(writer_of(draft) or "") is False:
            with suppress(OSError):  # another user's
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


@contextmanager
def draft_folder(name: str, parent: Path | None = None) -> Iterator[Path]:
    """An empty folder for the block alone, in `parent`, or where temporary files are. Only this user may read it."""
    folder = draft_of(Path(tempfile.gettempdir(), f"babeltune-{name}") if parent is None else parent / name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def replace_folder(draft: Path, folder: Path) -> None:
    """Moves a whole folder to its place in one step, and removes the one that was there.

    On a file system that cannot exchange two folders (NFS), nothing is there for a moment."""
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        earlier = _exchanged(draft, folder)
        sync(folder.parent)
        shutil.rmtree(earlier, ignore_errors=True)
    sync(folder.parent)


def _exchanged(draft: Path, folder: Path) -> Path:
    """Gives the draft the folder's name. Returns where the folder is now."""
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = AT_CURRENT_FOLDER, os.fsencode(draft), AT_CURRENT_FOLDER, os.fsencode(folder)
    if exchange is not None and exchange(*names, EXCHANGE) == 0:
        return draft
    earlier = draft_of(folder)
    folder.rename(earlier)
    draft.rename(folder)
    return earlier


def remove_folder(folder: Path, drafts: Path) -> None:
    """Removes a folder in one step: it is a draft in `drafts`, on the same file system, before its files go."""
    draft = draft_of(drafts / folder.name)
    folder.rename(draft)
    sync(folder.parent)
    shutil.rmtree(draft)


def make_folders(path: Path) -> None:
    """Makes the folder and those above it that are missing. Their names are on the disk before it returns."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)


def write_whole(path: Path, data: bytes | bytearray, *, durable: bool = False) -> None:
    """Writes the file as `written_whole` does."""
    with written_whole(path, durable=durable) as file:
        file.write(data)


@contextmanager
def written_whole(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Writes a file beside its place, then moves it there. So a reader never sees half of it, and a full disk leaves
    what was there. With `durable` that also holds if the machine loses its power. A link stays one. What is no file,
    such as a pipe, gets the bytes at once."""
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not (path.is_file() or path.is_dir()):
        with path.open("wb") as file:
            yield file
        return
    draft = draft_of(path)
    try:
        with draft.open("wb") as file:
            yield file
        if durable:
            sync(draft)
        draft.replace(path)
        if durable:
            sync(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_out(path: Path, data: bytes | bytearray) -> None:
    """Writes a file for the user, as `write_whole` does, and removes what killed commands left beside it."""
    remove_left(path)
    write_whole(path, data, durable=True)


def check_place(out: Path, inputs: Iterable[Path] = ()) -> None:
    """`SpecError` unless a file can be made at `out`, before the work whose result it is to hold. None of the `inputs`
    may stand there."""
    if out.exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise SpecError(f"--out {out} is a file that is read, too; name another one")
    if out.is_dir():
        raise SpecError(f"--out {out} is a folder; name a file in it")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise SpecError(f"--out {out}: there is no folder {folder}; make it, or name a file in another one")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SpecError(f"--out {out}: {folder} takes no file ({error.strerror}); name one elsewhere") from error


def make_place(out: Path, inputs: Iterable[Path] = ()) -> None:
    """Makes the folder of `out`, and checks it as `check_place` does. Raises `SpecError`."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"--out {out}: {out.parent} cannot be made ({error.strerror}); name one elsewhere") from error
    check_place(out, inputs)


def write_json(path: Path, value: object, *, durable: bool = True) -> None:
    """Writes a record or plain value as JSON, as `write_whole` does."""
    write_whole(path, json_text(value).encode(), durable=durable)


def json_text(value: object, *, indent: int | None = None, default: Callable[[object], object] | None = None) -> str:
    """A record or plain value as JSON that every reader takes: a figure that is not a finite number is null. `indent`
    and `default` are those of `json.dumps`."""
    return json.dumps(_finite(plain(value)), ensure_ascii=False, allow_nan=False, indent=indent, default=default)


def _finite(value: object) -> object:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def file_lock(path: Path, timeout_s: float = math.inf) -> Iterator[bool]:
    """Whether nobody else has this lock file within the block: another process or thread may have had it for
    `timeout_s`. The kernel's lock (flock) falls with its process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    while (handle := _flocked(path)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a child that was forked meanwhile has the handle, too
            os.close(handle)


def _flocked(path: Path) -> int | None:
    """The handle of the file, locked; None if somebody else has it."""
    handle, alone = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = os.fstat(handle).st_nlink > 0  # a file that was removed meanwhile keeps nobody out
    except BlockingIOError:
        pass
    except OSError as error:
        alone = error.errno in LOCKLESS  # a sweep's lease keeps other drivers out there, too
        if not alone:
            raise
    finally:
        if not alone:
            os.close(handle)
    return handle if alone else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process of this machine at a time changes the file within the block, for moments. `StorageError` if
    another one has it for `LOCK_TIMEOUT_S` seconds."""
    make_folders(path.parent)
    lock = path.with_name(f".{path.name}.lock")
    with file_lock(lock, LOCK_TIMEOUT_S) as alone:
        if not alone:
            raise StorageError(
                f"another process has {lock} for {LOCK_TIMEOUT_S:g} s: it is stopped, or its storage hangs; end it "
                f"(`fuser {lock}` names it), then try again"
            )
        yield


@contextmanager
def in_turn(lock: Path, work: str) -> Iterator[None]:
    """Only one process of this machine at a time is within the block, for as long as its `work` takes; a line says who
    is waited for."""
    with ExitStack() as leaving:
        if not leaving.enter_context(file_lock(lock, 1.0)):
            log.info("another process %s: waiting for it; `fuser %s` names it", work, lock)
            leaving.enter_context(file_lock(lock))
        yield


def append_line(path: Path, line: bytes) -> None:
    """Adds a line, on the disk before it returns. A last line without an end gets one first, so that both stay whole.

    Call it under `locked`. A disk that refuses leaves the file as it was."""
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        rest = (b"" if file.read(1) in (b"", b"\n") else b"\n") + line + b"\n"
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
            if not size:  # its name may be new
                sync(path.parent)
        except OSError:
            os.truncate(path, size)
            raise


@dataclasses.dataclass(frozen=True)
class LineCursor:
    """How far a reader is in a file of lines that others append to."""

    offset: int = 0
    seam: bytes = b""  # the last bytes before the offset

    def fits(self, path: Path) -> bool:
        """Whether the file still has what was read of it. It was made anew or cut off if it has not."""
        with path.open("rb") as file:
            file.seek(self.offset - len(self.seam))
            return file.read(len(self.seam)) == self.seam

    def lines(self, path: Path) -> Iterator[bytes]:
        """The whole lines from here on. A line that is still being written, or was cut off, is not whole."""
        with path.open("rb") as file:
            file.seek(self.offset)
            yield from itertools.takewhile(lambda line: line.endswith(b"\n"), file)

    def after(self, line: bytes) -> LineCursor:
        """The place behind this line, which is the next one."""
        return LineCursor(self.offset + len(line), line[-SEAM:])


def as_new_files(folder: Path) -> None:
    """Gives the files in the folder the permissions of any new file there, as the umask says.

    safetensors, and what saves with it, leaves files that only their owner may read."""
    new = folder / f".new.{uuid.uuid4().hex[:8]}"
    new.touch()
    try:
        mode = new.stat().st_mode & 0o666
    finally:
        new.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def aside(path: Path) -> Path:
    """Where to keep, beside it, what cannot be used of the file."""
    number = len(list(path.parent.glob(f"{path.name}.unusable-*")))
    return path.with_name(f"{path.name}.unusable-{number}")


def sync(path: Path) -> None:
    """Flushes a file, or a folder's list of names, to the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def end_on_a_line(path: Path) -> None:
    """Cuts off the line that a killed process left unfinished. A record that lacks only its end is given one."""
    content = path.read_bytes() if path.exists() else b""
    if not content or content.endswith(b"\n"):
        return
    whole = content.rfind(b"\n") + 1
    try:
        json.loads(content[whole:])
    except ValueError:
        os.truncate(path, whole)
    else:
        with path.open("ab") as file:
            file.write(b"\n")


@overload
def plain(record: DataclassInstance) -> JsonObject: ...
@overload
def plain(record: Mapping[str, object]) -> JsonObject: ...
@overload
def plain(record: object) -> JsonValue: ...
def plain(record: object) -> object:
    """The record as dictionaries, lists and scalars, ready for JSON."""
    if isinstance(record, Sequence) and not isinstance(record, str | bytes):
        return [plain(value) for value in record]
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: plain(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, dict):
        return {str(key): plain(value) for key, value in record.items()}
    return record
