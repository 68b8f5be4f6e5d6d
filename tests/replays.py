"""Draws a sweep's proposals again from its ledger, which must lead to the same ones."""

from babeltune.sweep.search.study import Proposals, follow
from babeltune.sweep.search.warm_start import kept_trials
from babeltune.sweep.state.log import LEDGER, Ledger


def replay(lines, sweep, suggest, warm=()):
    """The parameters by trial number that the recorded order of results leads to, in a study in memory."""
    proposals = Proposals(sweep, suggest, warm)
    params_by_number = {}

    def drawn_again(_):
        number, params = proposals.ask()
        params_by_number[number] = params
        return number

    follow(lines, proposals, drawn_again)
    return params_by_number


def trials_in(folder, sweep, suggest):
    """The trials of the study that the ledger in this folder tells, those that were taken over included."""
    warm = kept_trials(folder, sweep, suggest) or ()
    return Proposals(sweep, suggest, warm, Ledger(folder / LEDGER, mend=False).lines).study.get_trials()
