"""The sweeps of a storage that this machine reaches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from babeltune.cli.client import Change, Refit, Submission, Tables
from babeltune.cli.common import cluster_of, err, folder_of, not_running, out, say, steps_shown, warn, with_cluster
from babeltune.cli.run_here import recorded, run_sweep, running_words, show_taken
from babeltune.errors import SpecError, SweepError, counted

if TYPE_CHECKING:
    from babeltune.schema.records import Sweep
    from babeltune.sweep.state.folder import SweepFolder
    from babeltune.sweep.state.stored import Storage


class LocalClient:
    """A `SweepClient` that does everything in this process."""

    def __init__(self, file: str | None, *, as_json: bool) -> None:
        """`file` is the cluster's; None: this machine."""
        self._file, self._as_json = file, as_json
        self._where = with_cluster(file)

    def status(self, name: str | None, *, follow: bool) -> None:
        from babeltune.cli.render import show_status
        from babeltune.cli.terminal_view import attach
        from babeltune.sweep.state.progress import sweep_document, sweep_facts

        folder = folder_of(name, self._file)
        if follow:
            attach(folder, err)
        document = sweep_document(folder) if self._as_json else sweep_facts(folder)
        say(document, self._as_json, lambda: show_status(folder, document["state"], document["reason"], out))
        if document["state"] == "interrupted" and not self._as_json:
            err.print(f"its driver is gone; `babeltune resume {folder.id}{self._where}` goes on", soft_wrap=True)

    def trial(self, name: str) -> None:
        """Raises `UnknownNameError` that names the nearest one."""
        from babeltune.cli.trial import show_trial
        from babeltune.files import plain
        from babeltune.redaction import without_password
        from babeltune.sweep.state.folder import find_trial
        from babeltune.sweep.state.trial_page import trial_page

        sweep, _, trial = name.partition("/")
        folder = folder_of(sweep, self._file)
        page = trial_page(folder, find_trial(folder, trial))
        uri = cluster_of(self._file).mlflow
        server = without_password(uri).rstrip("/") if uri.startswith(("http://", "https://")) else None
        say(plain(page), self._as_json, lambda: show_trial(page, out, self._file, server))

    def logs(self, name: str | None, *, follow: bool) -> None:
        from babeltune.sweep.state.folder import read_log
        from babeltune.sweep.state.progress import sweep_facts

        folder = folder_of(name, self._file)
        if follow and not self._as_json:
            for text in followed(folder):
                out.out(text, end="", highlight=False)
            state = sweep_facts(folder)["state"]
            dead = f": its driver is gone; `babeltune resume {folder.id}{self._where}` goes on"
            err.print(f"sweep {folder.id}: {state}{dead if state == 'interrupted' else ''}", soft_wrap=True)
            return
        text = read_log(folder)
        if not text:
            warn([f"{folder.id} has no log yet"])
        document = {"sweep": folder.id, "state": sweep_facts(folder)["state"], "log": text}
        say(document, self._as_json, lambda: out.out(text, end="", highlight=False))

    def runs(self, tables: Tables) -> None:
        from babeltune.cli.render import show_comparison, show_leaderboard
        from babeltune.files import plain
        from babeltune.planning.goals import whole_name
        from babeltune.planning.warnings import about_order
        from babeltune.sweep.state.progress import standing
        from babeltune.sweep.state.seed_summary import compare

        if tables.name is None and not any((tables.sort, tables.over, tables.front, tables.by, tables.languages)):
            all_sweeps(self._file, self._as_json)
            return
        folder = folder_of(tables.name, self._file)
        data = folder.sweep().data
        sort = None if tables.sort is None else whole_name(data, tables.sort)
        metrics = tuple(whole_name(data, metric) for metric in tables.metric)
        if tables.front:
            show_pareto(folder, metrics, self._as_json)
        elif tables.languages:
            show_by_language(folder, self._as_json)
        elif tables.by:
            show_by(folder, tables.by, self._as_json)
        elif tables.over:
            table = compare(folder, tables.over, metrics, sort)
            say(plain(table), self._as_json, lambda: show_comparison(table, out, markdown=tables.markdown))
        else:
            rows = standing(folder, sort)
            warn(about_order(sort))
            say([plain(row) for row in rows], self._as_json, lambda: show_leaderboard(folder, out, sort))

    def submit(self, sweep: Sweep, asked: Submission) -> None:
        run_sweep(sweep, self._file, asked, as_json=self._as_json)

    def stop(self, name: str | None, *, wait: int) -> None:
        from babeltune.sweep.state.progress import sweep_facts
        from babeltune.sweep.state.stored import may_be_driven
        from babeltune.sweep.sync.audit import audit
        from babeltune.sweep.sync.view import StorageView

        folder, where = folder_of(name, self._file), self._where
        view = StorageView(cluster_of(self._file))
        storage = view.storage
        if not may_be_driven(storage, folder.id):
            state = sweep_facts(folder)["state"]
            soon = "; if it was started just now, try again in a few seconds" if state in ("new", "interrupted") else ""
            raise not_running(folder.id, state, soon)
        view.ask_to_stop(folder)
        audit(view, "stop", folder.id)
        err.print(f"asked sweep {folder.id} to stop; waiting for its driver, {wait} s at most")
        stopped = wait_for_driver(folder, storage, wait)
        later = f"`babeltune status {folder.id}{where}` shows it"
        words = (
            f"sweep {folder.id} stopped; `babeltune resume {folder.id}{where}` goes on"
            if stopped
            else f"sweep {folder.id} was asked to stop and has not yet; {later}"
        )
        say({"sweep": folder.id, "stopped": stopped}, self._as_json, lambda: out.print(words))
        if not stopped:
            raise typer.Exit(1)

    def resume(self, name: str | None, change: Change, asked: Submission) -> None:
        from babeltune.sweep.state.progress import is_driven

        folder = folder_of(name, self._file)
        if (words := change.words()) and is_driven(folder):
            raise SweepError(running_words(folder.id, self._where, *words))
        if change.sweep is None:
            sweep = recorded(folder, change.trials)
        else:
            sweep = change.sweep
            show_taken(folder, sweep, accept_changes=asked.accept_changes)
        run_sweep(sweep, self._file, asked, as_json=self._as_json, into=folder.id)

    def extend(self, name: str | None, trials: int, asked: Submission) -> None:
        from babeltune.sweep.state.progress import is_driven

        folder = folder_of(name, self._file)
        before = folder.sweep().budget.trials
        if trials <= before:
            raise SpecError(
                f"--trials {trials}: sweep {folder.id} has a budget of {counted(before, 'trial')}; give more than that"
            )
        if is_driven(folder):
            raise SweepError(running_words(folder.id, self._where, "budget", f"--trials {trials}", "extend"))
        run_sweep(recorded(folder, trials), self._file, asked, as_json=self._as_json, into=folder.id)

    def refit_spec(self, name: str | None, refit: Refit) -> tuple[str, str]:
        """Raises `SweepError` while the sweep runs."""
        from babeltune.planning.sweep_yaml import spec_yaml
        from babeltune.sweep.state.progress import is_driven
        from babeltune.sweep.state.refit import refit_of

        with steps_shown():
            folder = folder_of(name, self._file)
            if is_driven(folder):
                raise SweepError(f"sweep {folder.id} is running; wait for its end, or `babeltune stop {folder.id}`")
            made = refit_of(folder, top=refit.top, length=refit.pairs, seeds=refit.seeds, one_start=refit.one_start)
        return folder.id, spec_yaml(made)

    def show_gains(self, name: str, refit: Sweep) -> None:
        from babeltune.planning.recorded import sweep_id
        from babeltune.sweep.state.folder import SweepFolder
        from babeltune.sweep.state.refit import gain_words, gains

        made = SweepFolder(cluster_of(self._file).folder / "sweeps" / sweep_id(refit))
        for gain in () if self._as_json else gains(folder_of(name, self._file), made):
            out.print(gain_words(gain), markup=False, highlight=False)


def followed(folder: SweepFolder) -> Iterator[str]:
    """The sweep's log as it grows, while it is driven."""
    from babeltune.sweep.state.folder import read_log
    from babeltune.sweep.state.progress import is_driven

    seen = 0
    while True:
        driven = is_driven(folder)
        text = read_log(folder)
        yield text[seen:]
        seen = len(text)
        if not driven:
            return
        time.sleep(0.5)


def wait_for_driver(folder: SweepFolder, storage: Storage, seconds: float) -> bool:
    """Whether the sweep's driver has ended within this time. One that sends no heartbeat may still have the sweep."""
    from babeltune.sweep.state.stored import may_be_driven

    deadline, said = time.monotonic() + seconds, False
    while (driven := may_be_driven(storage, folder.id)) and time.monotonic() < deadline:
        folder.refresh()
        if folder.state() == "stopped" and not said:
            err.print("stopped; its driver is ending Ray")
            said = True
        time.sleep(0.3)
    return not driven


def show_pareto(folder: SweepFolder, metrics: tuple[str, ...], as_json: bool) -> None:
    """Shows the trials that no other beats in all metrics."""
    from babeltune.cli.render import show_front
    from babeltune.files import plain
    from babeltune.sweep.state.leaderboard import front

    columns, rows = front(folder, metrics)
    say([plain(row) for row in rows], as_json, lambda: show_front(columns, rows, out))


def show_by_language(folder: SweepFolder, as_json: bool) -> None:
    """Shows the first objective of each trial in every language pair."""
    from babeltune.cli.render import show_languages
    from babeltune.sweep.state.leaderboard import by_language
    from babeltune.sweep.state.progress import standing

    rows, objective = standing(folder), folder.sweep().objectives[0].metric
    scores = by_language(rows, objective)
    documents = [{"name": row.name, "state": row.state, "scores": scores[row.name]} for row in rows]
    say(documents, as_json, lambda: show_languages(scores, objective, out))


def show_by(folder: SweepFolder, setting: str, as_json: bool) -> None:
    """Shows a sweep's trials by the values of a searched setting."""
    from babeltune.cli.overview import show_by_setting
    from babeltune.files import plain
    from babeltune.sweep.state.by_setting import by_setting

    table = by_setting(folder, setting)
    say(plain(table), as_json, lambda: show_by_setting(table, out))


def all_sweeps(cluster: str | None, as_json: bool) -> None:
    """Shows every sweep of the storage; one that cannot be read is a warning."""
    from babeltune.cli.overview import show_sweeps
    from babeltune.errors import SweepError
    from babeltune.files import plain
    from babeltune.sweep.state.folder import sweep_folders
    from babeltune.sweep.state.overview import sweep_line, with_differences
    from babeltune.sweep.state.progress import sweep_document
    from babeltune.sweep.sync.view import StorageView

    view = StorageView(cluster_of(cluster))
    view.update(every=True)
    folders = sweep_folders(view.folder)
    lines, specs, documents = [], {}, {}
    for folder in folders:
        try:
            line, specs[folder.id] = sweep_line(folder), folder.read("sweep.json") or {}
            documents[folder.id] = sweep_document(folder) if as_json else {}
            lines.append(line)
        except SweepError as error:
            warn([f"sweep {folder.id} is left out: {error}"])
    lines = with_differences(lines, specs)
    said = [{**documents[line.sweep], **plain(line)} for line in lines]
    say(said, as_json, lambda: show_sweeps(lines, out) if lines or not folders else None)
