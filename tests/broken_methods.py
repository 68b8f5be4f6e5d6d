"""A method that keeps the contract of `babeltune.testing`, and methods that each break one promise of it."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from babeltune.errors import TrainingError
from babeltune.method import Loss, Method, Needs
from toy_methods import TwoViewsConfig


class Sound(Method):
    """Each source finds its target, and comes near its own vector of the teacher."""

    name = "sound"
    Config = TwoViewsConfig

    def __init__(self, config, **sizes):
        super().__init__(config, **sizes)
        self.register_buffer("calls", torch.zeros(1))

    @classmethod
    def needs(cls, config):
        return Needs(teacher=frozenset({"source"}), same_dimension=True, in_batch_negatives=True)

    def loss(self, encode, batch, gather):
        self.check(batch)
        source, target = encode(batch.source), gather(encode(batch.target))
        own_columns = torch.arange(len(source)) + gather.offset(len(source))
        ranking = cross_entropy(self.scores(source, target), own_columns, reduction="sum")
        distance = (source - self.teacher(batch)).square().sum()
        total = (ranking + distance) / batch.total * self.factor(batch, source)
        self.calls += 1
        return Loss(total, terms={"ranking": ranking.detach() / batch.total})

    def check(self, batch):
        if batch.total < 2:
            raise TrainingError("a single pair has no negatives")

    def scores(self, source, target):
        return source @ target.T / self.config.temperature

    def teacher(self, batch):
        return batch.teacher_source.detach()

    def factor(self, batch, source):
        return 1 + self.calls.item()


class AsksTheTeacher(Sound):
    """`check_gradients` fails."""

    def teacher(self, batch):
        return batch.teacher_source


class Unlearns(Sound):
    """`check_learns` fails: the gradient has the wrong sign."""

    def loss(self, encode, batch, gather):
        loss = super().loss(encode, batch, gather)
        return Loss(2 * loss.total.detach() - loss.total, terms=loss.terms)


class KnowsChunks(Sound):
    """`check_gradient_caching` fails: vectors of chunks come without their graph."""

    def factor(self, batch, source):
        return 2 if source.is_leaf else 1


class Forgets(Sound):
    """`check_saved_continues` fails: what it counts is no buffer."""

    counted = 0

    def factor(self, batch, source):
        self.counted += 1
        return self.counted


class HidesNan(Sound):
    """`check_nan_shows` fails."""

    def teacher(self, batch):
        return super().teacher(batch).nan_to_num()


class ChangesItsBatch(Sound):
    """`check_batch_unchanged` fails."""

    def teacher(self, batch):
        vectors = super().teacher(batch)
        return vectors.div_(vectors.norm(dim=1, keepdim=True))


class LearnsItsScale(Sound):
    """`check_no_scalar_parameter` fails."""

    def __init__(self, config, **sizes):
        super().__init__(config, **sizes)
        self.scale = nn.Parameter(torch.tensor(1.0))


class AcceptsOnePair(Sound):
    """`check_single_pair` fails."""

    def check(self, batch):
        pass


class CountsSpareTokens(Sound):
    """`check_spare_tokens` fails: tokens of no sentence count."""

    def factor(self, batch, source):
        return 1 + batch.source.ids.numel() / 100


class CountsItsOwnRows(Sound):
    """`check_ranks` fails: a rank divides by its own rows."""

    def factor(self, batch, source):
        return batch.total / max(len(source), 1)
