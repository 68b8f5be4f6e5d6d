"""Measures the temperatures that are `auto` before the first trial, so that a share that cannot be had ends the sweep
before it costs anything."""

from collections.abc import Iterator

from babeltune.data.prepared import Prepared
from babeltune.method import TrialContext, trial_context
from babeltune.planning.space import configurations, default_params, make_trial
from babeltune.schema.records import Sweep, Trial
from babeltune.sweep.state.folder import SweepFolder

DECIDING = ("training.global_batch", "training.batch_parts", "data.sampling.batches", "data.sampling.temperature")
"""Settings that decide which pairs are in a batch."""


def measure_temperatures(sweep: Sweep, prepared: Prepared, folder: SweepFolder) -> None:
    """Notes them in the log of the driver: each that can be proposed, those of a range at its ends.

    Raises `MethodError` for a share that cannot be had."""
    noted = set[str]()
    for trial, context in _fitted_trials(sweep):
        from babeltune.training.own_share import candidates, fit_temperatures  # it loads transformers

        numbers = fit_temperatures(trial, prepared).fitted
        for name, fit in context.fits.items():
            share = f"{fit.share:g} of a label among {candidates(trial, fit)} pairs"
            noted.add(f"measured: {name} {numbers[name]:g} gives a row's own pair {share}")
    for words in sorted(noted):
        folder.note(words)


def _fitted_trials(sweep: Sweep) -> Iterator[tuple[Trial, TrialContext]]:
    """Trials with an `auto` temperature, of every combination of what decides it."""
    # Only students that can be proposed have tokens, and the batches of all of them are alike.
    student = {name: value for name, value in default_params(sweep).items() if name.startswith("student.")}
    for params, _, _ in configurations(sweep, DECIDING):
        trial = make_trial(sweep, 0, student | params)
        context = trial_context(trial.method, trial.config)
        if context.fits:
            yield trial, context
