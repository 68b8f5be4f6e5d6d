"""The errors that a user can meet: each names the value, what was allowed, and the next step.

The command line prints the message without a traceback and exits with the error's `exit_code`."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # how a file in UTF-16 begins: the byte order mark. No UTF-8 text has these bytes.


def to_utf8(beginning: bytes, file: object = "FILE") -> str:
    """The advice for a file that is not UTF-8 and begins with these bytes; it converts nothing."""
    if beginning.startswith(UTF_16):
        return f"the file is UTF-16; convert it: `iconv -f UTF-16 -t UTF-8 {file} > NEW`"
    return "save the file as UTF-8"


class BabeltuneError(Exception):
    """Anything that babeltune refuses or gives up on, in words for its user."""

    exit_code = 1

    def __str__(self) -> str:
        return bounded(super().__str__())


class BabeltuneWarning(UserWarning):
    """A warning of something that was probably not meant, or that went wrong beside a result that holds."""


class SpecError(BabeltuneError):
    """A sweep or cluster file that cannot be run as written."""

    exit_code = 2


class DataError(BabeltuneError):
    """A corpus that cannot be read as its source says, with file and line."""

    exit_code = 2


class TeacherError(BabeltuneError):
    """A teacher or student that cannot be found, loaded or verified."""

    exit_code = 2


class MethodError(BabeltuneError):
    """A method that is unknown, or a configuration that it cannot train."""

    exit_code = 2


class MisfitError(BabeltuneError):
    """A model that gives other vectors than an index holds. Measured, so it is refused as a promotion is."""

    exit_code = 3


class StoreError(BabeltuneError):
    """A store on disk that cannot be built or trusted."""


class TrainingError(BabeltuneError):
    """A trial that had to stop: a loss that is not finite, a batch without negatives."""


class CheckpointError(BabeltuneError):
    """A checkpoint that is missing, half-written or altered."""


class StorageError(BabeltuneError):
    """A storage that is full, read-only or gone. Nothing that is on it is lost, and what was not written can be made
    again: a trial that met it has not failed."""

    @classmethod
    def at(cls, place: Path, why: object) -> StorageError:
        return cls(
            f"the storage refuses {place} ({why}); free space or make it writable, then `babeltune resume`: every "
            "trial keeps its last checkpoint"
        )


class FencedError(StorageError):
    """A write of a trial whose sweep another driver has taken over. The trial has not failed: that driver has it."""


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})  # error numbers of a disk without room
REFUSALS = FULL | frozenset({errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM, errno.ENOTCONN})
"""Errors that are the storage's fault, and not the program's."""


@contextlib.contextmanager
def storage_refusals(place: Path, storage: str | None = None) -> Iterator[None]:
    """Turns what the system refuses within the block into a `StorageError`. With `storage`, an error that names a file
    outside of that folder stays as it is."""
    try:
        yield
    except OSError as error:
        path = error.filename if isinstance(error.filename, str | os.PathLike) else None
        elsewhere = path and storage and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(storage))
        if error.errno not in REFUSALS or elsewhere:
            raise
        raise StorageError.at(Path(path or place), error.strerror) from error


class ClusterError(BabeltuneError):
    """A cluster that cannot be reached or cannot hold what was asked for."""


class NodeError(ClusterError):
    """A node on which no trial can run, in words that follow the node's name, such as `does not see …`."""


class ReplacedError(ClusterError):
    """Ranks whose trial went to others, while they were taken for dead: what they do counts no more."""


class SilentDispatcherError(ReplacedError):
    """Ranks whose dispatcher does not answer. Their process ends, so that it holds no GPU for a driver that is gone."""


class DispatcherDiedError(ClusterError):
    """The process of a sweep's dispatcher died. Its worker groups must be started anew; the trials go on."""


class ObjectStoreError(ClusterError):
    """A storage behind a URI that does not answer, refuses, or holds what it should not."""


class SweepError(BabeltuneError):
    """A sweep that is unknown, already running, or ended without a finished trial."""


class DamagedError(SweepError):
    """A file of a sweep's folder is damaged, and no other record has what it held."""


class QuotaError(SweepError):
    """A user has computed as much in a month as the cluster file permits."""

    exit_code = 3


class UnknownNameError(SweepError):
    """A sweep, trial or metric that does not exist."""

    exit_code = 2


class PromotionError(BabeltuneError):
    """The reason why a checkpoint is not judged or registered. A refusal is no error: see `Decision.exit_code`."""


NETWORK = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE}
)
"""Error numbers of a server that cannot be reached."""


def from_network(error: BaseException) -> str:
    """The system's words about the network, such as `Connection refused`, if that is behind the error; else
    nothing."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and (isinstance(cause, socket.gaierror) or cause.errno in NETWORK):
            return str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return ""


def check_all(*checks: Callable[[], object]) -> None:
    """Calls each check. Raises the error of the only one that fails, or one with a line for each that does."""
    errors: list[BabeltuneError] = []
    for check in checks:
        try:
            check()
        except BabeltuneError as error:
            errors.append(error)
    if len(errors) > 1:
        raise type(errors[0])("\n".join(map(str, errors)))
    if errors:
        raise errors[0]


def plural(number: Any, noun: str, many: str = "") -> str:
    """A number, which may come from JSON, with its noun: `1 row`, `2 rows`, `1,000 rows`."""
    whole = int(number) if float(number).is_integer() else number
    return f"{whole:,} {noun if number == 1 else many or noun + 's'}"


LONGEST_NAME = 100  # characters of names that are compared: the time grows with their square


def nearest(name: str, allowed: Iterable[str], closeness: float = 0.5) -> str:
    """The words `; did you mean 'x'?`, or nothing when no allowed name is close, whatever its case."""
    by_lower = {each.lower(): each for each in allowed if len(each) <= LONGEST_NAME}
    close = difflib.get_close_matches(name[:LONGEST_NAME].lower(), list(by_lower), n=1, cutoff=closeness)
    return f"; did you mean {shortened(by_lower[close[0]])}?" if close else ""


NEAR_FILE = 0.7  # the similarity from which on one file name may be a mistyped other one


def nearest_file(name: str, allowed: Iterable[str]) -> str:
    """The words `; did you mean 'x'?` for the file with the nearest name. Names are compared without their endings, as
    equal ones would make all files look alike."""
    by_stem: dict[str, list[str]] = {}
    for each in allowed:
        by_stem.setdefault(Path(each).stem.lower(), []).append(each)
    close = difflib.get_close_matches(Path(name).stem.lower()[:LONGEST_NAME], list(by_stem), n=1, cutoff=NEAR_FILE)
    return nearest(name, by_stem[close[0]], 0.0) if close else ""


def shortened(value: str, width: int = 60) -> str:
    """The value in quotes, cut to a width. Control characters, escapes and direction marks are written out."""
    return repr(value if len(value) <= width else value[: width - 1] + "…")


def printable(text: str) -> str:
    """The text with control characters, escapes and direction marks written out, but for line ends and tabs."""
    if text.rstrip("\n").isprintable():
        return text
    return "".join(each if each.isprintable() or each in SPACES else repr(each)[1:-1] for each in text)


LONGEST_LINE = 1_000
"""Characters of a line of a message. A longer one holds text of a file or a name, which could fill a terminal."""


def bounded(text: str) -> str:
    """A message as people get it: printable, and lines of more than `LONGEST_LINE` characters cut in their middle."""
    lines = printable(text).split("\n")
    half = LONGEST_LINE // 2 - 1
    return "\n".join(
        line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}"[:LONGEST_LINE] for line in lines
    )


SPACES = frozenset("\n\t\u00a0\u202f\u2009\u3000\u200d")
"""Blanks that a terminal may get, and the joiner within letters, which `str.isprintable` takes for unprintable."""


def list_of(names: Iterable[str], most: int = 10) -> str:
    """The first names, separated by commas, and how many more there are. Names that are no plain words are quoted."""
    every = list(names)
    words = [
        name if name.isprintable() and 0 < len(name) <= 60 and "," not in name else shortened(name) for name in every
    ]
    return ", ".join(words[:most]) + (f" and {len(every) - most:,} more" if len(every) > most else "")
