"""The scores of a bitext from its vectors, for tests that know what they are."""

from babeltune.evaluation import bitext


def bitext_accuracy(left, right):
    """Share of sentences whose nearest neighbour by cosine is the one of the same row: left to right, right to left.

    The first number is the `accuracy` of mteb's bitext mining. Rows are compared, not texts, so a repeated sentence
    counts as right only in its first row."""
    matches = bitext.match(left, right, k=1)
    return bitext.accuracy(matches.forward), bitext.accuracy(matches.backward)


def bitext_f1(left, right):
    """mteb's main score for bitext mining, both directions: F1 with the predicted row as class, weighted by support."""
    matches = bitext.match(left, right, k=1)
    return bitext.weighted_f1(matches.forward), bitext.weighted_f1(matches.backward)


def xsim_error(left, right, k=4, *, texts=None, margin="ratio", candidates="nearest"):
    """xSIM error rates (0 to 1), left to right and back. `texts` are the text ids of both sides."""
    matches = bitext.match(left, right, k, candidates)
    left_texts, right_texts = texts or (None, None)
    return bitext.xsim(matches, right_texts, margin), bitext.xsim(matches.turned(), left_texts, margin)
