"""The inputs with which a sweep began, and their changes since: its spec, the code, the packages, the data.

A change that decides results is shown and refused unless accepted. To accept changes writes an event into the ledger:
the changes, and the trials that had begun. A trial that has not ended goes on with its own settings and data, so each
trial has one spec. The sweep then has trials under several conditions. The first condition is number 1."""

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import babeltune
from babeltune.errors import SweepError, plural
from babeltune.files import make_folders, plain, write_whole
from babeltune.planning.recorded import NEUTRAL, NOT_DECIDING, sweep_from, sweep_id
from babeltune.planning.rules import kind_of
from babeltune.schema.base import from_plain
from babeltune.schema.records import Sweep
from babeltune.schema.trial_names import trial_name, trial_number
from babeltune.sweep.state.folder import SweepFolder, add_to_ledger
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.messages import Accepted

TAKEN_AT_THE_START = ("name", "objectives", "sampler.points", "sampler.warm_start")
"""Keys of a spec that a sweep's study was made with."""
ABSENT = "absent"
LONGEST = 60  # characters of a value in a diff


@dataclass(frozen=True)
class Change:
    """One value that differs, by its key path; the word `absent` stands for one that is not there."""

    key: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.key}: {_words(self.before)} → {_words(self.after)}"

    @property
    def decides(self) -> bool:
        """Whether a trial's result depends on it."""
        return self.key.partition(".")[0] not in NOT_DECIDING and self.key not in NEUTRAL


def _words(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _leaves(value: object, key: str) -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict | list) or not value:
        yield key, value
        return
    for part, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(item, f"{key}.{part}" if key else str(part))


def differences(before: object, after: object) -> list[Change]:
    """The values that differ, in the order of their key paths."""
    old, new = dict(_leaves(before, "")), dict(_leaves(after, ""))
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key, ABSENT) != new.get(key, ABSENT))
    return [Change(key, old.get(key, ABSENT), new.get(key, ABSENT)) for key in keys]


def spec_changes(folder: SweepFolder, sweep: Sweep) -> list[Change]:
    """The changes of this spec to the one that the folder has; nothing if it has none yet."""
    recorded = folder.read("sweep.json")  # what an earlier version did not have is as the default says
    return [] if recorded is None else differences(plain(sweep_from(recorded)), plain(sweep))


def check_unchanged(folder: SweepFolder, facts: dict[str, object], *, accept: bool, sweep: Sweep | None = None) -> None:
    """Refuses to continue a sweep with other code, packages, data or settings, unless the change is accepted.

    Raises `SweepError` with the diff; also for changes that a study cannot take, accepted or not."""
    recorded = folder.read("facts.json") or {}
    before = {name: recorded[name] for name in facts if name in recorded}
    changes = differences(before, {name: facts[name] for name in before})
    of_spec = [change for change in spec_changes(folder, sweep) if change.decides] if sweep is not None else []
    changed = [*of_spec, *changes]
    if of_spec and sweep is not None:
        _refuse_unfit(folder, sweep, of_spec)
    if changed and not accept:
        raise _changed_since(folder, changed)
    if not changed:
        folder.write("facts.json", {**recorded, **facts})
        return
    spec = sweep if of_spec else None
    new_facts = {**recorded, **facts}
    if spec is not None:
        new_facts["spec"] = sweep_id(spec)
    ended = {number for number, trial in log_of(folder.path).trials.items() if trial.end is not None}
    checkpoints = folder.path.glob("trials/t[0-9]*/checkpoints/[!.]*")
    begun = sorted(ended | {trial_number(path.parents[1].name) for path in checkpoints})
    accepted: Accepted = {
        "changes": [plain(change) for change in changed],
        "begun": begun,
        "unfinished": [number for number in begun if number not in ended],
        "before": plain(folder.sweep()),
        "spec": None if spec is None else plain(spec),
        "facts": plain(new_facts),
    }
    add_to_ledger(folder, "accept", **accepted)
    folder.note("accepted: " + "; ".join(map(str, changed)))
    finish_accepting(folder)


def check_text(folder: SweepFolder, digests: Mapping[str, str]) -> None:
    """Refuses text that is not what the sweep began with, before a teacher encodes it.

    Raises `SweepError` that names the sources and sets that differ."""
    recorded = (folder.read(folder.prepared.name) or {}).get("digests", digests)
    if changes := differences({"data": recorded}, {"data": digests}):
        raise _changed_since(folder, changes)


def _changed_since(folder: SweepFolder, changes: Sequence[Change]) -> SweepError:
    return SweepError(
        f"sweep {folder.id} began with other settings, code, packages or data:\n"
        + "\n".join(f"  {change}" for change in changes)
        + "\nits finished trials would not compare with new ones; go back to what it began with, submit a new "
        "sweep under another name, or pass --accept-changes"
    )


def finish_accepting(folder: SweepFolder) -> None:
    """Writes what accepting changes means for the folder. An earlier driver may have been killed at it."""
    accepting = log_of(folder.path).accepting
    if accepting is None or folder.read("facts.json") == accepting["facts"]:
        return
    if accepting["spec"] is not None or any(change["key"] == "data" for change in accepting["changes"]):
        copy = folder.path / "conditions" / str(len(folder.accepted())) / folder.prepared.name
        make_folders(copy.parent)
        if folder.prepared.exists() and not copy.exists():
            write_whole(copy, folder.prepared.read_bytes(), durable=True)
        (folder.path / "baselines.json").unlink(missing_ok=True)
    if accepting["spec"] is not None:
        folder.write("sweep.json", accepting["spec"])
    folder.write("facts.json", accepting["facts"])  # last: it says that all is written


def _refuse_unfit(folder: SweepFolder, sweep: Sweep, changes: Iterable[Change]) -> None:
    """`SweepError` for changes with which the study that the folder has cannot go on."""
    reasons = [
        f"{change}: a search takes it when it begins"
        for change in changes
        if any(change.key == key or change.key.startswith(f"{key}.") for key in TAKEN_AT_THE_START)
    ]
    before = folder.sweep()
    gridded = "grid" in (before.sampler.kind, sweep.sampler.kind)
    if gridded and (before.sampler.kind != sweep.sampler.kind or before.parameters != sweep.parameters):
        reasons.append("sampler.kind grid: its trials are numbered by the grid's points")
    for name in before.parameters.keys() & sweep.parameters.keys():
        old, new = before.parameters[name], sweep.parameters[name]
        kinds = {kind_of(old), kind_of(new)}
        if "const" not in kinds and (len(kinds) > 1 or old.choice != new.choice):
            reasons.append(f"parameters.{name}: a study cannot change its kind or its choices; a range may")
    if reasons:
        raise SweepError(
            f"sweep {folder.id} cannot go on with:\n"
            + "\n".join(f"  {reason}" for reason in reasons)
            + "\nsubmit it as a new sweep; `sampler.warm_start` takes over what this one found"
        )


def accepted_lines(folder: SweepFolder) -> Iterator[str]:
    """The changes that were accepted while the sweep went on, a line each."""
    for index, entry in enumerate(folder.accepted(), start=2):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["time"]))
        changes = "; ".join(str(from_plain(Change, change)) for change in entry["changes"])
        across = ", ".join(map(trial_name, entry["unfinished"]))
        yield (
            f"mixed conditions: {index} since {when}, accepted: {changes}; {plural(len(entry['begun']), 'trial')} "
            "began before" + (f"; {across} had not ended and kept their settings and data" if across else "")
        )


PINNED = (
    *("torch", "ray", "optuna", "transformers", "sentence-transformers", "tokenizers", "safetensors"),
    *("datasets", "numpy", "py3langid"),
)
"""Packages whose version can change a trial's numbers."""
PACKAGES = (
    *("babeltune", "torch", "transformers", "sentence-transformers", "tokenizers", "safetensors", "numpy"),
    *("ray", "optuna", "mlflow", "datasets", "py3langid"),
)
"""Packages whose versions a sweep notes. A change of one decides nothing, unless it is in `PINNED`."""
SWEEP_RUNS = (
    *("babeltune.sweep.driver.run", "babeltune.sweep.workers.run_trial", "babeltune_methods"),
    *("babeltune.data.parquet_process", "babeltune.data.sheet_process"),
)
"""Modules that a sweep begins with: its driver, its workers, and what is named but not imported."""
OURS = r"(babeltune(?:_methods)?(?:\.\w+)*)"
IMPORT = re.compile(rf"^\s*(?:from\s+{OURS}\s+import\s+(\([^)]*\)|.*)|import\s+{OURS})", re.MULTILINE)
"""An import of our own code. Syntax trees would say the same, and take 2.4 s of a core instead of 0.03."""


def code_of_sweeps(source: Path | None = None) -> dict[str, Path]:
    """The source files, by their modules' names, that a sweep imports: at the top or in functions, directly or not.

    `source` has the folders of both packages; None: those that run."""
    import babeltune_methods

    folders = {package.__name__: Path(package.__path__[0]) for package in (babeltune, babeltune_methods)}
    tops = folders if source is None else {name: source / name for name in folders}
    methods = (f"babeltune_methods.{path.stem}" for path in tops["babeltune_methods"].glob("[!_]*.py"))
    waiting, reached = {*SWEEP_RUNS, *methods}, dict[str, Path]()
    while waiting:
        name = waiting.pop()
        top, *parts = name.split(".")
        stem = tops[top].joinpath(*parts)
        path = next((each for each in (stem.with_suffix(".py"), stem / "__init__.py") if each.is_file()), None)
        if path is not None and name not in reached:
            reached[name] = path
            if "." in name:
                waiting.add(name.rpartition(".")[0])  # its package is imported first
            for module, names, alone in IMPORT.findall(path.read_text(encoding="utf-8")):
                waiting |= {module or alone, *(f"{module}.{each}" for each in re.findall(r"\w+", names))}
    return dict(sorted(reached.items()))


def code_digest(source: Path | None = None) -> str:
    """SHA-256 over the files of `code_of_sweeps`."""
    digest = hashlib.sha256()
    for name, path in code_of_sweeps(source).items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def deciding_facts(methods: Iterable[str] = ()) -> dict[str, object]:
    """Facts that must not change between two submissions of one sweep: the code and the packages that compute.

    `code` holds a digest for babeltune and for each other distribution that one of these methods comes from."""
    from babeltune.method.plugins import OWN, digest_of, plugins  # and with it torch, which readers do without

    code = {OWN: code_digest(), **{name: digest_of(plugin) for name, plugin in plugins(methods).items()}}
    return {"code": code, **{name: version(name) for name in PINNED}}


def environment_facts() -> dict[str, str]:
    """Facts on which a result depends besides the sweep file: git commit, package versions, platform, CPU count."""
    facts = {"git.commit": _commit(), "python": platform.python_version(), "platform": platform.platform()}
    facts["cpus"] = str(os.cpu_count())
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[f"version.{package}"] = version(package)
    return facts


def _commit() -> str:
    """The commit of the source tree, `+dirty` with uncommitted changes; `none` if installed from a wheel."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():
        return "none"

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
