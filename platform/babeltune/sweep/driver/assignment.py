"""The assignment of a trial to a worker group."""

from dataclasses import replace

from babeltune.data.prepared import read_prepared
from babeltune.errors import DamagedError
from babeltune.files import make_folders, plain, write_json
from babeltune.method import trial_context
from babeltune.planning.space import make_trial, shape_of
from babeltune.schema.records import Scalar, Sweep, Trial, trial_from, with_fitted
from babeltune.sweep.state.folder import SweepFolder, read_of_trial
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.state.rebuild import damage


def with_speed(folder: SweepFolder, trial: Trial) -> Trial:
    """The trial with the speed of its student's shape, if that was measured before the search."""
    speed = (folder.read("baselines.json") or {}).get("speeds", {}).get(shape_of(trial))
    return trial if speed is None else replace(trial, speed=tuple(speed))


def with_temperatures(folder: SweepFolder, trial: Trial) -> Trial:
    """The trial with numbers in place of `auto`: those that it began with, or what the teacher's stored vectors give.

    Raises `MethodError` for a share that cannot be had."""
    if not trial_context(trial.method, trial.config).fits:
        return trial
    logged = log_of(folder.path).trials.get(trial.number)
    if logged is not None and logged.fitted:
        return with_fitted(trial, logged.fitted)
    from babeltune.training.own_share import fit_temperatures  # loads transformers, which most sweeps do without

    return fit_temperatures(trial, read_prepared(folder.prepared))


def assignment(sweep: Sweep, folder: SweepFolder, number: int, params: dict[str, Scalar]) -> TrialAssignment:
    """The assignment of trial `number` to a worker group; written to the trial's folder, too.

    One that has begun keeps its settings and data, whatever was accepted since. Raises `DamagedError` if they are lost.
    """
    place, prepared = folder.trial(number), folder.data_of(number)
    if prepared == folder.prepared:
        trial = with_temperatures(folder, with_speed(folder, make_trial(folder.with_rates(sweep), number, params)))
        with folder.guard():
            make_folders(place)
            write_json(place / "trial.json", trial)
    else:
        if words := damage(prepared):
            raise DamagedError(words)
        if (recorded := read_of_trial(place, "trial.json")) is not None:
            trial = trial_from(recorded)
        else:
            trial = make_trial(folder.with_rates(folder.sweep_of(number)), number, params)
    storage = str(folder.path.parents[1])
    return TrialAssignment(
        folder=str(place), trial=plain(trial), prepared=str(prepared), storage=storage, seed=trial.seed
    )
