"""The model registry of MLflow: a promoted model becomes a version of a registered model, found by its alias."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.errors import BabeltuneError, PromotionError, UnknownNameError, nearest
from babeltune.files import draft_folder, sha256_of
from babeltune.models.hub import dimension_of
from babeltune.redaction import without_password
from babeltune.schema.trial_names import trial_name
from babeltune.tracking import mlflow_client
from babeltune.tracking.checkpoint_models import EXAMPLE, add_version, model_of_run, with_signature, write_mlmodel
from babeltune.tracking.mlflow_client import STEP_UNIT, SWEEP, TRIAL

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

FOR_MLFLOW = ("MLmodel", EXAMPLE)  # files that a registered model has beside its export, for MLflow
MODEL = "babeltune.model_id"
"""The tag of a version with MLflow's id of the model of its checkpoint. MLflow's own field for it stays empty: its
server takes one only for files that lie with that model, and its database does not keep it."""
ABOUT = (
    "Sentence encoders that `babeltune promote` registered. An alias, such as `champion`, names the version to use. "
    "The description of a version is its model card."
)
"""The description of a registered model."""
CARD_CHARACTERS = 5000  # MLflow's limit for a version's description
CLAIM_S = 300
"""Seconds after which a dead process' claim does not count. To move an alias takes less, and clocks differ by less."""


@dataclass(frozen=True)
class Registered:
    """A version in the model registry."""

    version: str
    run_id: str
    source: str
    tags: dict[str, str]


def register(uri: str, name: str, folder: Path, run_id: str, tags: Mapping[str, object]) -> str:
    """Makes the folder a version of the registered model `name`, and returns the version.

    Its card is the version's description, and an `MLmodel` beside the files lets `mlflow.pyfunc` load them. The tag
    `MODEL` links it with the model of its checkpoint, in both directions.

    The files become artifacts of the run (a server accepts no other source). Their folder is named by their content,
    so that registering the same files again gives the same version. `PromotionError` says what the store refused."""
    path = registered_folder(folder)
    source = f"runs:/{run_id}/{path}"
    with _promotion(uri, f"register {name!r}") as client:
        models = client.search_registered_models(f"name = '{mlflow_client.quotable(name)}'")
        if not models:
            client.create_registered_model(name, description=ABOUT)
        elif not models[0].description:
            client.update_registered_model(name, ABOUT)
        model = client.get_logged_model(str(tags[MODEL])) if MODEL in tags else None
        page = "" if model is None else f"#/experiments/{model.experiment_id}/models/{model.model_id}"
        origin = "" if model is None else f"Its checkpoint: [{model.name}]({page})."
        versions = [
            v for v in client.search_model_versions(f"name = '{mlflow_client.quotable(name)}'") if v.source == source
        ]
        if not versions:
            client.log_artifacts(run_id, str(folder), path)
            if (folder / "modules.json").is_file():
                log_signature(client, run_id, path, folder)
            words = {mlflow_client.mlflow_name(key): mlflow_client.text_of(value) for key, value in tags.items()}
            card = card_of(folder, origin)
            versions = [client.create_model_version(name, source, run_id=run_id, tags=words, description=card)]
        version = str(versions[0].version)
        if model is not None:
            add_version(client, model, name, version)
        return version


def move_alias(uri: str, name: str, alias: str, version: str, *, replaces: str | None) -> None:
    """Moves the alias from the version `replaces` (None: there was none) to another one, and from no other.

    MLflow has no compare-and-set, so the alias is read under a claim (`_claimed`) and once more after.
    `PromotionError` names who came in between, or what the store refused."""
    with _promotion(uri, f"register {name!r}") as client:
        with _claimed(client, name, alias, version):
            _expect(uri, name, alias, replaces, version)
            client.set_registered_model_alias(name, alias, version)
        _expect(uri, name, alias, version, version)


def checkpoint_model(uri: str, run_id: str) -> str | None:
    """MLflow's id of the model of a trial's best checkpoint. None if there is none, as on servers before MLflow 3."""
    from mlflow.exceptions import MlflowException

    with _promotion(uri, f"look up the run {run_id}") as client, contextlib.suppress(MlflowException):
        logged = model_of_run(client, client.get_run(run_id).info.experiment_id, run_id)
        return None if logged is None else str(logged.model_id)
    return None


def card_of(folder: Path, origin: str = "") -> str | None:
    """The folder's model card without its header of YAML; None if there is none.

    The `origin` stands before its first section. A card that is too long for MLflow loses whole sections, and names
    them."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8")
    _, mark, rest = text.removeprefix("---").partition("\n---\n")
    body = (rest if text.startswith("---") and mark else text).strip()
    beginning, mark, sections = body.partition("\n## ")
    body = f"{beginning.rstrip()}\n\n{origin}\n{mark}{sections}".strip() if origin else body
    return whole_sections(body, CARD_CHARACTERS)


def whole_sections(card: str, limit: int) -> str:
    """The card within the limit: its beginning, each section that fits, in order, and the names of those left out."""
    if len(card) <= limit:
        return card
    beginning, *sections = re.split(r"\n(?=## )", card)
    names = [section.partition("\n")[0].removeprefix("## ") for section in sections]
    room = limit - len(beginning) - len(_left_out(names, limit)) - 2
    whole: list[str] = []
    omitted: list[str] = []
    for name, section in zip(names, sections, strict=True):
        if len(section) + 1 <= room:
            whole.append(section)
            room -= len(section) + 1
        else:
            omitted.append(name)
    return mlflow_client.shorten("\n".join([beginning, *whole, "", _left_out(omitted, limit)]), limit)


def _left_out(names: Sequence[str], limit: int) -> str:
    return f"MLflow takes {limit} characters. `README.md` of the version also has: {', '.join(names)}."


def log_signature(client: MlflowClient, run_id: str, path: str, folder: Path) -> None:
    """Adds what MLflow reads of a model to the artifacts: flavor, signature and an input example.

    MLflow then loads the sentence-transformers folder as it is. `mlflow.sentence_transformers.log_model` would load the
    model first and write it anew, in another layout than the files that were scored."""
    import sentence_transformers

    model = with_signature(dimension_of(folder) or -1, run_id=run_id, artifact_path=path)
    model.add_flavor("python_function", loader_module="mlflow.sentence_transformers", data=".")
    model.add_flavor("sentence_transformers", sentence_transformers_version=sentence_transformers.__version__)
    with draft_folder("model") as place:
        write_mlmodel(place, model)
        client.log_artifacts(run_id, str(place), path)


@contextlib.contextmanager
def _claimed(client: MlflowClient, name: str, alias: str, version: str) -> Iterator[None]:
    """Lets only one version at a time move the alias, whichever storages and machines the promotions run on.

    Each promotion writes its claim, a tag of its version, and then reads the claims of others. Of two that overlap, the
    one that reads last sees the other's claim, or finds that the alias has moved. So both may be refused, but never
    both succeed. The claim of a dead process does not count after `CLAIM_S`. A process that pauses for longer between
    two requests is not guarded against."""
    tag = mlflow_client.mlflow_name(f"babeltune.claim.{alias}")
    now = time.time()
    client.set_model_version_tag(name, version, tag, str(now))
    try:
        for other in client.search_model_versions(f"name = '{mlflow_client.quotable(name)}'"):
            claim = other.tags.get(tag)
            if str(other.version) != version and claim is not None and now - float(claim) < CLAIM_S:
                raise PromotionError(
                    f"version {other.version} of {name} is being promoted to {alias!r} at this moment; version "
                    f"{version} is registered without the alias; promote again to compare it with the new champion (a "
                    f"claim that a crash has left, the tag {tag!r}, ends after {CLAIM_S} s)"
                )
        yield
    finally:
        with contextlib.suppress(Exception):  # it ends by itself
            client.delete_model_version_tag(name, version, tag)


def _expect(uri: str, name: str, alias: str, expected: str | None, version: str) -> None:
    """`PromotionError` unless the alias points to the version that is expected."""
    champion = champion_of(uri, name, alias)
    present = None if champion is None else champion.version
    if present != expected:
        raise PromotionError(
            f"{name}@{alias} was {'not there' if expected is None else f'version {expected}'} and is now "
            f"{'gone' if present is None else f'version {present}'}: another promotion came in between; "
            f"version {version} is registered without the alias; promote again to compare it with the new champion"
        )


def champion_of(uri: str, name: str, alias: str) -> Registered | None:
    """The version that `alias` points to, or None if there is no such model or alias."""
    with _promotion(uri, f"look up {name!r}") as client:
        models = client.search_registered_models(f"name = '{mlflow_client.quotable(name)}'")
        if not models or alias not in models[0].aliases:
            return None
        return _registered(client.get_model_version_by_alias(name, alias))


def find_run(uri: str, experiment: str, sweep: str, number: int) -> str:
    """MLflow's id of a trial's run; `PromotionError` when the store does not have it."""
    with _promotion(uri, f"look up the run of {sweep}/{number}") as client:
        run = mlflow_client.run_of_trial(client, mlflow_client.experiment_id(client, experiment), sweep, str(number))
    if run is None:
        raise PromotionError(
            f"{without_password(uri)} has no run of {sweep}/{number}; `babeltune resume {sweep}` sends what is missing"
        )
    return str(run.info.run_id)


def trial_of_run(uri: str, run_id: str) -> str:
    """The trial, `SWEEP/t0007`, that a run of MLflow recorded; `PromotionError` for a run that is not a trial's."""
    with _promotion(uri, f"look up the run {run_id}") as client:
        tags: dict[str, str] = client.get_run(run_id).data.tags
    sweep, trial = tags.get(SWEEP), tags.get(TRIAL, "").removeprefix("t")
    if sweep is None or not trial.isdecimal():
        raise PromotionError(f"the run {run_id} in {without_password(uri)} is no trial of a sweep; name a trial's run")
    return f"{sweep}/{trial_name(int(trial))}"


def log_scores(uri: str, run_id: str, scores: Mapping[str, float], step: int, pairs: int) -> None:
    """Adds the metrics of sealed tests to a trial's run, at the checkpoint's step or pairs, as the run counts steps."""
    from mlflow.entities import Metric

    with _promotion(uri, "log the test metrics") as client:
        now = time.time_ns() // 1_000_000
        at = pairs if client.get_run(run_id).data.tags.get(STEP_UNIT) == "pairs" else step
        metrics = [Metric(mlflow_client.mlflow_name(name), float(value), now, at) for name, value in scores.items()]
        for part in mlflow_client.slices(metrics, mlflow_client.METRICS_PER_BATCH):
            client.log_batch(run_id, part)


def fetch(uri: str, model: str, folder: Path) -> Path:
    """The files of a registered model, `models:/NAME@ALIAS`, in a folder below `folder` that their content names."""
    name, _, alias = model.removeprefix("models:/").partition("@")
    version = champion_of(uri, name, alias)
    if version is None:
        with _promotion(uri, "list the models") as client:
            aliases = [f"models:/{m.name}@{a}" for m in client.search_registered_models() for a in m.aliases]
        raise UnknownNameError(
            f"{without_password(uri)} has no {model}; there: {', '.join(aliases) or 'none'}{nearest(model, aliases)}; "
            "`babeltune promote` registers one"
        )
    return fetch_version(uri, version, folder)


def fetch_version(uri: str, version: Registered, folder: Path) -> Path:
    """The files of a version, in a folder below `folder` that their content names."""
    place = folder / version.source.rpartition("/")[2]
    if place.is_dir() and place.name == registered_folder(place):
        return place
    with _promotion(uri, f"fetch {version.source!r}"):
        from mlflow.artifacts import download_artifacts

        folder.mkdir(parents=True, exist_ok=True)
        return Path(download_artifacts(artifact_uri=version.source, dst_path=str(folder), tracking_uri=uri))


def registered_folder(folder: Path) -> str:
    """The name of a registered model's folder: `model-` and 12 hexadecimal digits of its files and their content."""
    digest, of_mlflow = hashlib.sha256(), {folder / name for name in FOR_MLFLOW}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p not in of_mlflow):
        digest.update(f"{path.relative_to(folder)} {sha256_of(path)}\n".encode())
    return f"model-{digest.hexdigest()[:12]}"


def versions_of(uri: str, name: str) -> list[Registered]:
    """The versions of a registered model; none if there is no such model."""
    with _promotion(uri, f"look up {name!r}") as client:
        return [_registered(each) for each in client.search_model_versions(f"name = '{mlflow_client.quotable(name)}'")]


def version_in(uri: str, folder: Path) -> Registered | None:
    """The version whose files a fetched folder holds; None if the folder is no version's."""
    with _promotion(uri, f"look up {folder.name!r}") as client:
        for registered in client.search_model_versions():
            if (registered.source or "").rpartition("/")[2] == folder.name:
                return _registered(registered)
    return None


def _registered(version: ModelVersion) -> Registered:
    return Registered(str(version.version), version.run_id, version.source, dict(version.tags))


@contextlib.contextmanager
def _promotion(uri: str, action: str) -> Iterator[MlflowClient]:
    """A client of the store. `PromotionError` says which action it refused."""
    try:
        yield mlflow_client.open_client(uri)
    except BabeltuneError:
        raise
    except Exception as error:  # a server may fail in any way, and so may a database that MLflow cannot even open
        raise PromotionError(
            f"cannot {action} in the MLflow store {without_password(uri)}: {mlflow_client.why(error)}; "
            "check that it answers (`babeltune ui`), then promote again"
        ) from error
