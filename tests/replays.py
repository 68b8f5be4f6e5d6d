"""Draws a sweep's proposals again from its ledger, which must lead to the same ones."""

import optuna

from babeltune.sweep.search.study import Proposals, follow


def replay(lines, sweep, suggest, warm=()):
    """The parameters by trial number that the recorded order of results leads to, in a study in memory."""
    study = optuna.create_study(directions=[objective.goal for objective in sweep.objectives])
    proposals = Proposals(study, sweep, suggest, warm)
    found = {}

    def drawn_again(_):
        number, params = proposals.ask()
        found[number] = params
        return number

    follow(lines, proposals, drawn_again)
    return found
