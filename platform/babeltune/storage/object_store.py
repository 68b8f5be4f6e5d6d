"""The objects below one URI, such as `s3://bucket/prefix`; the only door to fsspec.

An object appears whole, under its name, when its upload is complete. Credentials come from the environment alone
(`AWS_…`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`), as each protocol's own library reads them."""

import contextlib
import hashlib
import itertools
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

from babeltune.errors import FULL, REFUSALS, ClusterError, ObjectStoreError
from babeltune.files import locked, write_whole
from babeltune.schema.storage_location import STORAGE_TIMEOUT_S

Result = TypeVar("Result")
WAIT_S, JITTER_S, MOST_WAIT_S = 0.2, 0.2, 8.0
"""Seconds before a request is repeated: `WAIT_S` at first, twice as many each time, at most `MOST_WAIT_S`. Up to
`JITTER_S` more are drawn at random, so that many workers do not ask at once."""
EXTRAS = {"s3": "babeltune[s3]", "s3a": "babeltune[s3]", "gs": "babeltune[gs]", "gcs": "babeltune[gs]"}
"""The packages of protocols that do not come with fsspec."""
ONE_TRY = {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 1}}}
OPTIONS: dict[str, dict[str, Any]] = {"s3": ONE_TRY, "s3a": ONE_TRY, "file": {"auto_mkdir": True}}
S3, GCS = ("s3", "s3a"), ("gs", "gcs")
WHOLE = 5 * 2**30  # bytes up to which S3 takes an object in one request. A condition holds for one request only.
CHANGED = ("PreconditionFailed", "412")  # error codes of S3 for an object that is not the one that a write expects
TAGS = ("ETag", "etag", "md5Hash", "generation", "mtime")  # the key of an object's version, by protocol
TIMES = ("LastModified", "last_modified", "updated", "mtime")
NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")


@dataclass(frozen=True)
class Entry:
    """One object in a listing: size, version and time."""

    size: int  # bytes
    tag: str  # another one after each change
    modified: float  # when, in seconds since 1970 by the store's clock
    version: str = ""
    """The version for conditional writes: the ETag on S3, the generation on Google Cloud Storage, else the tag."""


class ObjectStore:
    """The objects below a URI, by keys relative to it.

    Each request is repeated for `timeout` seconds; then, or at once if it is refused, `ObjectStoreError` says why."""

    def __init__(self, uri: str, timeout: float = STORAGE_TIMEOUT_S) -> None:
        """Raises `ClusterError` for a protocol that is unknown or not installed; asks the store nothing."""
        self.uri, self.timeout = uri.rstrip("/"), timeout
        self._protocol = self.uri.partition("://")[0]
        self.compares = self._protocol in (*S3, *GCS, "file")
        """Whether the storage itself compares versions. A server may ignore what a request expects: set False then."""
        self._fs, self._root = _open_store(self.uri)

    def entries(self, prefix: str = "") -> dict[str, Entry]:
        """The objects below a key; `ObjectStoreError` for one whose name would leave its folder."""
        place = self._place(prefix) if prefix else self._root
        listing: dict[str, Any] = self._if_there("listed", lambda: self._fs.find(place, detail=True)) or {}
        names = {name[len(self._root) + 1 :]: info for name, info in listing.items() if not name.endswith("/")}
        return {inside(name): _entry(info) for name, info in names.items()}

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders right below a key."""
        place = self._place(prefix)
        listing: list[dict[str, Any]] = self._if_there("listed", lambda: self._fs.ls(place, detail=True)) or []
        folders = [each["name"].rstrip("/") for each in listing if each["type"] == "directory"]
        return sorted(inside(name[len(place) + 1 :]) for name in folders)

    def entry(self, key: str) -> Entry | None:
        """Size, version and time of the object, or None if it does not exist."""
        place = self._place(key)
        return self._if_there(f"asked for {key}", lambda: _info(self._fs, place))

    def now(self) -> float | None:
        """The time by the store's own clock, which dates its objects."""
        key = f".now-{uuid.uuid4().hex[:8]}"
        self.write(key, b"now\n")
        try:
            entry = self.entry(key)
        finally:
            self.remove(key)
        return entry.modified if entry else None

    def read(self, key: str, start: int | None = None) -> bytes | None:
        """The object, from this byte on; None if there is none."""
        place = self._place(key)
        whole = {"max_concurrency": 1} if self._protocol in S3 else {}  # s3fs else asks for the size before
        data: bytes | None = self._if_there(f"read at {key}", lambda: self._fs.cat_file(place, start=start, **whole))
        return data

    def download(self, key: str, path: Path) -> None:
        """Raises `FileNotFoundError` if there is no such object."""
        place = self._place(key)
        self._tried(f"read at {key}", lambda: self._fs.get_file(place, str(path)))

    def sha256(self, key: str) -> str | None:
        """The digest of the object, which touches no disk of this machine; None if there is none."""
        place = self._place(key)

        def read() -> str:
            with self._fs.open(place, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        return self._if_there(f"read at {key}", read)

    def write(self, key: str, data: bytes) -> None:
        place = self._place(key)
        with _a_bucket(self.uri):
            self._tried(f"written at {key}", lambda: self._fs.pipe_file(place, data))

    def write_if(self, key: str, data: bytes, expected: str | None) -> Entry | None:
        """Writes the object if it still has the expected version; None expects that there is no such object.

        Returns what was written, or None if the object is another one by now. Storages that compare do it in one step.
        Any other storage is asked first, and a write in between is not seen."""
        place = self._place(key)
        with _a_bucket(self.uri):
            return self._tried(f"written at {key}", lambda: self._swapped(place, data, expected))

    def _swapped(self, place: str, data: bytes, expected: str | None) -> Entry | None:
        if not self.compares:
            return self._compared_and_written(place, data, expected)
        if self._protocol in S3:
            return self._swapped_on_s3(place, data, expected)
        if self._protocol in GCS:
            return _swapped_on_gcs(self._fs, place, data, expected)
        with locked(Path(place)):
            return self._compared_and_written(place, data, expected)

    def _swapped_on_s3(self, place: str, data: bytes, expected: str | None) -> Entry | None:
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        try:
            answer = self._fs.pipe_file(place, data, chunksize=WHOLE, **condition)
        except FileNotFoundError:
            if expected is None:  # then it is the bucket that is not there
                raise
            return None
        except OSError as error:
            if _is_changed(error):
                return None
            raise
        return _entry({"ETag": answer["ETag"], "size": len(data), "mtime": time.time()})

    def _compared_and_written(self, place: str, data: bytes, expected: str | None) -> Entry | None:
        try:
            present = _info(self._fs, place).version
        except FileNotFoundError:
            present = None
        if present != expected:
            return None
        if self.uri.startswith("file:"):
            write_whole(Path(place), data)
        else:
            self._fs.pipe_file(place, data)
        return _info(self._fs, place)

    def upload(self, path: Path, key: str, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Calls `on_bytes(n)` for each chunk. A failed attempt reports its bytes as a negative number."""
        place, size = self._place(key), 0

        def tell(more: int) -> None:
            nonlocal size
            size += more
            on_bytes(more)

        def put() -> None:
            tell(-size)
            self._fs.put_file(str(path), place, callback=_counting(tell))
            tell(path.stat().st_size - size)  # not every protocol counts

        with _a_bucket(self.uri):
            self._tried(f"written at {key}", put)

    def remove(self, key: str) -> None:
        """Nothing happens if there is no such object."""
        place = self._place(key)
        self._if_there(f"changed at {key}", lambda: self._fs.rm_file(place))

    def remove_if(self, key: str, expected: str) -> bool:
        """Removes the object if it still has the expected version, as `write_if` writes it; whether it did."""
        place = self._place(key)
        return bool(self._if_there(f"changed at {key}", lambda: self._removed(place, expected)))

    def _removed(self, place: str, expected: str) -> bool:
        if not self.compares or self._protocol not in (*S3, *GCS):
            with locked(Path(place)) if self._protocol == "file" else contextlib.nullcontext():
                same = _info(self._fs, place).version == expected
                if same:
                    self._fs.rm_file(place)
                return same
        bucket, name, _ = self._fs.split_path(place)
        try:
            if self._protocol in S3:
                self._fs.call_s3("delete_object", Bucket=bucket, Key=name, IfMatch=expected)
            else:
                self._fs.call("DELETE", "b/{}/o/{}", bucket, name, ifGenerationMatch=expected)
        except OSError as error:
            if _is_changed(error):
                return False
            raise
        return True

    def _place(self, key: str) -> str:
        return f"{self._root}/{inside(key)}"

    def _if_there(self, action: str, request: Callable[[], Result]) -> Result | None:
        """The request's result; None if there is no such object."""
        with contextlib.suppress(FileNotFoundError):
            return self._tried(action, request)
        return None

    def _tried(self, action: str, request: Callable[[], Result]) -> Result:
        """The request's result. A failure that is no refusal is tried again until `timeout` ends."""
        deadline = time.monotonic() + self.timeout
        for number in itertools.count():
            try:
                return request()
            except FileNotFoundError:
                raise
            except Exception as error:  # each protocol's library has its own
                wait = pause_s(number)
                lasts = isinstance(error, NotImplementedError) or is_local(error) or _refused(error)
                if lasts or time.monotonic() + wait >= deadline:
                    why = f"the storage {self.uri} cannot be {action} ({_first_line(error)})"
                    raise ObjectStoreError(f"{why}; {_next_step(error)}") from error
            time.sleep(wait)
        raise AssertionError  # the count has no end


def pause_s(failures: int) -> float:
    """Seconds before a request is repeated that has failed this often before."""
    return min(WAIT_S * 2.0 ** min(failures, 10) + random.uniform(0, JITTER_S), MOST_WAIT_S)


@contextlib.contextmanager
def _a_bucket(uri: str) -> Iterator[None]:
    """For requests that fail so only if the bucket is not there."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectStoreError(f"the storage {uri} is not there ({_first_line(error)}); create it") from error


def _swapped_on_gcs(system: Any, place: str, data: bytes, expected: str | None) -> Entry | None:
    bucket, name, _ = system.split_path(place)
    server = system.base.partition("/storage/v1")[0]
    try:
        answer = system.call(
            "POST",
            f"{server}/upload/storage/v1/b/{quote(bucket)}/o",
            uploadType="media",
            name=name,
            ifGenerationMatch=expected or "0",
            headers={"Content-Type": "application/octet-stream"},
            data=data,
            json_out=True,
        )
    except FileExistsError:  # gcsfs's name for an object of another generation
        return None
    return _entry({**answer, "mtime": time.time()})


def _is_changed(error: OSError) -> bool:
    """Whether an object is not the one that was expected, in the words of S3 or of gcsfs."""
    answer = getattr(error.__cause__, "response", None) or {}
    return isinstance(error, FileExistsError) or answer.get("Error", {}).get("Code") in CHANGED


def _next_step(error: Exception) -> str:
    """The next step after a request that failed for good."""
    if is_local(error):
        return "make room on this machine, and its folder writable"
    if _refused(error):
        return "give this machine credentials that may read and write there, in its environment"
    if isinstance(error, NotImplementedError):
        return "name a storage that can be written"
    return "start it, or check its address and the network"


def inside(key: str) -> str:
    """The key, if it stays below the folder that it is relative to; `ObjectStoreError` otherwise."""
    parts = key.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts) or PurePosixPath(key).root:
        raise ObjectStoreError(f"the storage holds an object {key!r}, whose name leaves its folder; remove that object")
    return key


def _counting(tell: Callable[[int], None]) -> Any:
    """The callback of fsspec for each part of a file."""
    from fsspec.callbacks import Callback

    class Counting(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            tell(inc)

    return Counting()


def _open_store(uri: str) -> tuple[Any, str]:
    protocol = uri.partition("://")[0]
    options = OPTIONS.get(protocol, {})
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # gcsfs would ask what kind of bucket it is
    for chatter in ("s3fs", "gcsfs"):  # they warn of each try; we say what became of them
        logging.getLogger(chatter).setLevel(logging.CRITICAL)
    try:
        import fsspec

        if protocol in GCS:  # its client else waits for ever
            import aiohttp  # which takes .2 s

            options = {"requests_timeout": aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)}
        system, root = fsspec.core.url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        package = EXTRAS.get(protocol)
        todo = f"`pip install '{package}'` on every node" if package else _first_line(error)
        raise ClusterError(f"the storage {uri} needs a package that is not installed; {todo}") from error
    except ValueError as error:
        raise ClusterError(f"the storage {uri} cannot be opened: {_first_line(error)}") from error
    except OSError as error:  # of protocols that connect at once
        raise ObjectStoreError(
            f"the storage {uri} cannot be reached ({_first_line(error)}); check its address"
        ) from error
    if protocol.startswith("s3"):
        system.retries = 1
    return system, str(root).rstrip("/")


def is_local(error: BaseException | None) -> bool:
    """Whether it is a disk of this machine that refuses."""
    return isinstance(error, OSError) and (error.errno in FULL or bool(error.filename and error.errno in REFUSALS))


def _refused(error: Exception) -> bool:
    """Whether the store wants to know who asks, or somebody else to: each protocol's library says so in its own way."""
    return (
        isinstance(error, PermissionError)
        or type(error).__name__ in NO_CREDENTIALS
        or getattr(error, "code", None) in (401, 403)
        or (isinstance(error, OSError) and str(error).startswith("Forbidden"))
    )


def _info(system: Any, place: str) -> Entry:
    """The store's record of one object. The `info` of s3fs and gcsfs also lists what is below the name."""
    protocols = system.protocol
    if S3[0] in protocols:
        bucket, name, _ = system.split_path(place)
        return _entry(system.call_s3("head_object", Bucket=bucket, Key=name))
    if GCS[0] in protocols:
        bucket, name, _ = system.split_path(place)
        return _entry(system.call("GET", "b/{}/o/{}", bucket, name, json_out=True))
    return _entry(system.info(place))


def _entry(info: dict[str, Any]) -> Entry:
    tag = next((str(info[name]) for name in TAGS if info.get(name) is not None), "")
    when = next((info[name] for name in TIMES if info.get(name) is not None), 0.0)
    when = datetime.fromisoformat(when) if isinstance(when, str) else when
    modified = when if isinstance(when, int | float) else when.timestamp() if hasattr(when, "timestamp") else 0.0
    size = int(info.get("size") or info.get("ContentLength") or 0)
    tag = f"{tag}:{size}"
    if "generation" in info:
        state = str(info["generation"])
    elif "ino" in info:  # a file: two writes within one tick of the clock make two files
        state = f"{tag}:{info['ino']}"
    else:
        state = str(info.get("ETag") or tag)
    return Entry(size=size, tag=tag, modified=float(modified), version=state)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
