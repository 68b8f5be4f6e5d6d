"""Runs a command as a program: usable standard streams, UTF-8, and any error as one line with its exit code.

The entry points call `run_program`. Nothing else may end the process or print a traceback."""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import shlex
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from babeltune import __version__
from babeltune.errors import REFUSALS, BabeltuneError, bounded
from babeltune.redaction import without_password

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
WRONG_NAME = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
"""Error numbers of a path that leads to no usable file."""


def run_program(command: Callable[[], object], show: Callable[[str], None] | None = None) -> NoReturn:
    """Runs the command and ends the process.

    `show` prints the message of an error; plain text on stderr if it is left out. Exit codes: 0 done, 1 failed, 2 for
    a wrong file or name, 130 after Ctrl-C, or what the command itself exits with."""
    # A process that this one starts imports nothing from where the user stands. An empty part of the path means that.
    os.environ["PYTHONSAFEPATH"] = "1"
    if "PYTHONPATH" in os.environ:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, os.environ["PYTHONPATH"].split(os.pathsep)))
    # Torch's threads spin while they wait for one another, 300,000 times by default. Beside other work that takes the
    # core of the thread they wait for.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    use_utf8()
    open_closed_streams()
    # Registered first, so run last: Python then takes its handlers away, and a late Ctrl-C would kill the process.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    sys.unraisablehook = send_again
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(BoundedFormatter())  # it writes all warnings: nothing else is configured
    try:
        code, message = _outcome(command)
    except KeyboardInterrupt:
        code, message = INTERRUPTED, ""
    if code == INTERRUPTED:  # another Ctrl-C does not wait for what Python does at its end
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    if message:
        (show or _show)(message)
    raise SystemExit(code)


def _outcome(command: Callable[[], object]) -> tuple[int | str | None, str]:
    """The exit code, and the message of an error."""
    try:
        try:
            refuse_undecodable(sys.argv[1:])
            refuse_a_deleted_folder()
            command()
        finally:
            _flush()
    except SystemExit as end:
        return end.code, ""
    except BabeltuneError as error:
        return error.exit_code, str(error)
    except OSError as error:
        if error.errno not in {*REFUSALS, *WRONG_NAME}:
            return 1, unexpected(error)
        name = str(error.filename or "a file or the output")
        words = f"{name if len(name) < 300 else name[:299] + '…'}: {error.strerror}; make it usable, or name another"
        return 2 if error.errno in WRONG_NAME else 1, words
    except Exception as error:
        if isinstance(error, RuntimeError) and "home directory" in str(error):  # pathlib's, of `~name/file`
            return 2, "a path begins with ~ and a name that is no user's here; write the whole path"
        return 1, unexpected(error)
    return 0, ""


def _flush() -> None:
    """Writes out what stdout still holds. If it cannot, nothing more goes there, and the error is raised once."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:  # a reader that has seen enough, such as `head`
            raise OSError(error.errno, error.strerror, "stdout") from error


def _show(message: str) -> None:
    print(f"error: {bounded(message)}", file=sys.stderr)


class BoundedFormatter(logging.Formatter):
    """Formats a log record as a message for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's message, printable and bounded."""
        return bounded(super().format(record))


def send_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Sends a Ctrl-C again if it came within a callback, in which Python would print and forget it."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(0.01, signal.raise_signal, [signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(unraisable)


def use_utf8() -> None:
    """Starts Python again in UTF-8 mode if the locale says otherwise, such as `LC_ALL=C`.

    File names, files and output are UTF-8 everywhere else, and in every worker that this process starts."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def open_closed_streams() -> None:
    """Gives a closed stdin, stdout or stderr (`>&-`) the null device, and lets no character end the program.

    Otherwise the next file that is opened would become stdout."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def refuse_undecodable(arguments: list[str]) -> None:
    """Raises an error for an argument that is not UTF-8, such as the name of a file from an older system."""
    for each in arguments:
        try:
            each.encode()
        except UnicodeEncodeError:
            raise UndecodableArgumentError(
                f"the argument {os.fsencode(each)!r} is not UTF-8; rename the file, or convert the text to UTF-8"
            ) from None


class UndecodableArgumentError(BabeltuneError):
    """An argument of the command line that is not UTF-8."""

    exit_code = 2


def refuse_a_deleted_folder() -> None:
    """Raises an error if the working folder is gone: no relative name means anything, and libraries end the process."""
    try:
        Path.cwd()
    except FileNotFoundError:
        shell = os.environ.get("PWD", "")
        name = f", {shell}," if shell else ""
        raise DeletedFolderError(
            f"the folder{name} that this command runs in was deleted; go to one that exists, such as with `cd`"
        ) from None


class DeletedFolderError(BabeltuneError):
    """A working folder that is gone."""

    exit_code = 2


def unexpected(error: BaseException) -> str:
    """One line about an error that nobody foresaw.

    Its traceback goes to a file that this user alone can read, or with BABELTUNE_DEBUG=1 to stderr."""
    trace = without_password("".join(traceback.format_exception(error)))
    words = without_password(" ".join(f"{type(error).__name__}: {error}".split()))[:500]
    command = without_password(shlex.join(sys.argv))
    if os.environ.get("BABELTUNE_DEBUG") == "1":
        sys.stderr.write(trace)
        return f"{words} (babeltune {__version__})"
    try:
        handle, path = tempfile.mkstemp(prefix="babeltune-", suffix=".traceback.txt")
        os.close(handle)
        text = f"babeltune {__version__}, Python {sys.version}\n{command}\n\n{trace}"
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
        ending = f"its full traceback is in {path}"
    except OSError:
        ending = "no file could take its traceback"
    return (
        f"{words} (babeltune {__version__}); this is a defect of babeltune: {ending}; "
        "please report it. BABELTUNE_DEBUG=1 prints it"
    )
