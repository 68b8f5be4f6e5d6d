"""A weighted sum of several methods' losses.

No paper of its own: each term is the published loss of the method that it is named after. The student encodes each side
of a batch into vectors once, whatever number of terms reads them. A term that encodes a side twice gets a second view
with other dropout, as it would alone. A term that reads token states has a pass of its own for them.

    L           sum_m w_m L_m
    w_m         weight of method m; 0 leaves it out
    L_m         its loss with its own `Config`, given in `settings`"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from babeltune.errors import MethodError, nearest
from babeltune.method import (
    Batch,
    Encode,
    Gather,
    Loss,
    Method,
    Needs,
    OwnShare,
    TeacherVectors,
    available,
    load_method,
    make_config,
)
from babeltune.method.views import Shared, Views

NAME = "combined"
METHODS = tuple(name for name in available() if name != NAME and name.isidentifier())

Weights = make_dataclass(
    "Weights",
    [(name, "float", field(default=0.0, metadata={"source": f"Weight of {name}'s loss: ours."})) for name in METHODS],
    frozen=True,
    namespace={"__module__": __name__},
)


@dataclass(frozen=True)
class Config(Weights):  # type: ignore[misc, valid-type]
    """One weight for each installed method, 0 when left out, and the settings of those that are combined."""

    settings: dict[str, dict[str, object]] = field(default_factory=dict)
    """Method -> fields of its own `Config`, which say their places; what is left out keeps its default. Ours."""

    def __post_init__(self) -> None:
        for name in METHODS:
            weight = getattr(self, name)
            if not (weight >= 0 and math.isfinite(weight)):
                raise ValueError(f"{name} is {weight}; a weight is 0 or more")
        for name, values in self.settings.items():
            if name not in METHODS:
                raise ValueError(
                    f"settings are for {name!r}, no method to combine; allowed: {', '.join(METHODS)}"
                    f"{nearest(name, METHODS)}"
                )
            if not isinstance(values, Mapping):
                raise ValueError(f"settings of {name!r} are {values!r}; give the fields of its own settings")
            make_config(load_method(name), values)


def parts(config: Any) -> dict[str, tuple[type[Method], object]]:
    """The methods with a weight above 0, by name, and their configurations."""
    chosen = {name: load_method(name) for name in METHODS if getattr(config, name) > 0}
    return {name: (method, make_config(method, config.settings.get(name, {}))) for name, method in chosen.items()}


# --- What several methods need together -----------------------------------------------------------------------------

UNITED: dict[str, Callable[[list[object]], object]] = {
    "teacher": lambda sides: frozenset().union(*cast("list[frozenset[str]]", sides)),
    "same_dimension": any,
    "in_batch_negatives": any,
    "translations": all,
    "warm_up": lambda counts: max(cast("list[int]", counts)),
    "layer": lambda layers: max(cast("list[int]", layers)),
    "words": any,
    "states": any,
    "vectors": any,
    "fixed_width": any,
}
"""Needs that methods may have in different measure, and what satisfies all of them."""
WHERE = {"hard_negatives": "hard_negatives", "hard_negatives_below": "hard_negatives", "masked": "masked"}
"""Needs on which those must agree that have any: a method without hard negatives, or masks, passes them over."""


def union(needs: Mapping[str, Needs]) -> Needs:
    """The needs of all of these methods; `MethodError` names two that need what cannot both be had."""
    values: dict[str, Any] = {}
    for part in dataclasses.fields(Needs):
        which = WHERE.get(part.name)
        having = {name: need for name, need in needs.items() if which is None or getattr(need, which)}
        among = having or {"none": Needs()}
        by_name = {name: getattr(need, part.name) for name, need in among.items()}
        unite = UNITED.get(part.name)
        values[part.name] = unite(list(by_name.values())) if unite else agreed(part.name, by_name)
    return Needs(**values)


def agreed(need: str, values: Mapping[str, object]) -> object:
    """The one value that all of them have."""
    (first, value), *others = values.items()
    for other, different in others:
        if different != value:
            raise MethodError(
                f"{first} and {other} cannot be combined: they disagree on {need}, {value!r} and {different!r}; "
                "give settings under which they agree, or leave one of them out"
            )
    return value


class Combined(Method):
    name = NAME
    Config = Config

    def __init__(self, config: Any, *, student_dim: int, teacher_dim: int, width: int = 0, vocabulary: int = 0) -> None:
        dims = {"student_dim": student_dim, "teacher_dim": teacher_dim}
        sizes = {"width": width, "vocabulary": vocabulary}  # for the methods that read token states alone
        super().__init__(config, **dims, **sizes)
        self.methods = nn.ModuleDict(
            {
                name: method(settings, **dims, **(sizes if method.needs(settings).states else {}))
                for name, (method, settings) in parts(config).items()
            }
        )

    @classmethod
    def needs(cls, config: Any) -> Needs:
        needs = {name: method.needs(settings) for name, (method, settings) in parts(config).items()}
        if not needs:
            raise MethodError(
                f"no weight is above 0; give one to at least one of {', '.join(METHODS)}; a searched one begins above 0"
            )
        for name, need in needs.items():
            if need.frozen or need.per_language:
                raise MethodError(f"{name} trains layers on a frozen encoder and cannot be combined; leave it out")
        return union(needs)

    @classmethod
    def uses(cls, config: Any) -> Sequence[str]:
        return tuple(parts(config))

    @classmethod
    def negatives(cls, config: Any, global_batch: int) -> int:
        return max(method.negatives(settings, global_batch) for method, settings in parts(config).values())

    @classmethod
    def warning(cls, means: Mapping[str, float]) -> str:
        warnings = []
        for name in METHODS:
            part_means = {
                key.removeprefix(f"{name}/"): mean for key, mean in means.items() if key.startswith(f"{name}/")
            }
            if part_means and (words := load_method(name).warning(part_means)):
                warnings.append(f"{name}: {words}")
        return "; ".join(warnings)

    @classmethod
    def fits(cls, config: Any) -> Mapping[str, OwnShare]:
        """Those of the combined methods, as `settings.soft_contrastive.teacher_temperature`."""
        fits = {name: method.fits(settings) for name, (method, settings) in parts(config).items()}
        return {f"settings.{name}.{field}": fit for name, each in fits.items() for field, fit in each.items()}

    @classmethod
    def label_warning(cls, config: Any, vectors: TeacherVectors) -> str:
        warnings = {name: method.label_warning(settings, vectors) for name, (method, settings) in parts(config).items()}
        return "; ".join(f"{name}: {words}" for name, words in warnings.items() if words)

    def terms(self) -> Iterable[tuple[str, Method]]:
        """The combined methods by name."""
        for name, method in self.methods.items():
            assert isinstance(method, Method)
            yield name, method

    def layers(self) -> Mapping[str, nn.Sequential]:
        """Those of the one method that keeps any; the other terms read the encoder's vectors before them."""
        return next((layers for _, method in self.terms() if (layers := method.layers())), {})

    def warm_up(self, vectors: Tensor, ids: Tensor) -> None:
        for _, method in self.terms():
            if count := method.needs(method.config).warm_up:
                method.warm_up(vectors[:count], ids[:count])

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        """sum_m w_m L_m; terms and diagnostics are each method's own, `lealla/ams`, without the weight."""
        views = Views(encode)
        total: list[Tensor] = []
        terms: dict[str, Tensor] = {}
        diagnostics: dict[str, Tensor] = {}
        for name, method in self.terms():
            if batch.alone and method.needs(method.config).translations:
                continue
            loss = method.loss(Shared(views), batch, gather)
            total.append(getattr(self.config, name) * loss.total)
            terms |= {f"{name}/loss": loss.total.detach()}
            terms |= {f"{name}/{term}": value for term, value in loss.terms.items()}
            diagnostics |= {f"{name}/{key}": value for key, value in loss.diagnostics.items()}
        return Loss(torch.stack(total).sum(), terms, diagnostics)
