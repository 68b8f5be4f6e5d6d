"""A promoted model goes to a repository of the Hugging Face hub, or to a folder that is laid out like one:
`babeltune push MODEL REPO`.

The card is the one that promotion wrote: the licence is added, and the snippet names the repository. The token comes
from `HF_TOKEN` alone, and no other file or login is looked for."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from babeltune.errors import PromotionError, SpecError, from_network
from babeltune.promotion.inherited_card import CARD, LIBRARY, NOT_STATED, section
from babeltune.promotion.model_files import SAFE, check_free, write_folder
from babeltune.schema.cluster import Cluster
from babeltune.schema.trial_names import is_trial_of_sweep
from babeltune.stages import tell
from babeltune.tracking.registry import FOR_MLFLOW

TOKEN = "HF_TOKEN"  # the variable with the token of the hub
SNIPPET = '"this-folder"'  # the model's name in a card's snippets before it has a repository


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """Where the model is now."""

    url: str
    """The commit in the repository, or the folder."""
    license: str
    files: tuple[str, ...]
    public: bool | None
    """Whether a new repository is open to all; None for a folder. One that is there already stays what it is."""
    warnings: tuple[str, ...] = ()
    """About training text whose licence nobody has stated."""


def push(model: str, repo: str, cluster: Cluster, *, license: str | None = None, public: bool = False) -> Pushed:
    """Sends the model's files with a complete card. `license` is an id of the hub, such as `apache-2.0`.

    Raises `SpecError` for a name that is no repository, a missing token or licence, and a model without a card;
    `PromotionError` for a hub that is away or refuses."""
    place = folder_named(repo)
    if place is not None:
        check_free(place)
    elif not os.environ.get(TOKEN):
        todo = f"set {TOKEN} to one that may write, from https://huggingface.co/settings/tokens"
        raise SpecError(f"the hub takes {repo} with a token only: {todo}")
    if is_trial_of_sweep(model) and not Path(model).is_dir():
        todo = f"`babeltune promote {model} --out FOLDER` makes a model"
        raise SpecError(f"{model!r} is a trial, and has no card; {todo}")
    from babeltune.promotion.model_names import model_folder  # torch: a refusal above comes without it

    folder = Path(model_folder(model, cluster))
    _refuse_damaged(folder)
    card, license = complete_card(folder, model, license, None if place is not None else repo)
    files = {str(path.relative_to(folder)): path for path in _files_of(folder)}
    if place is None:
        url = _send(repo, files, card, public)
        return Pushed(url=url, license=license, files=(*files, CARD), public=public, warnings=_unlicensed(card))

    def write(draft: Path) -> None:
        for name, path in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, draft / name)
        (draft / CARD).write_text(card, encoding="utf-8")

    write_folder(write, place)
    return Pushed(url=str(place), license=license, files=(*files, CARD), public=None, warnings=_unlicensed(card))


def _refuse_damaged(folder: Path) -> None:
    """`SpecError` for weights that were cut off."""
    from safetensors import SafetensorError, safe_open

    from babeltune.promotion.readers import reader_of

    if reader_of(folder) is not None:
        return
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            with safe_open(path, "np"):
                pass
        except SafetensorError as error:
            raise SpecError(f"{path} is damaged ({error}); promote or export the model again") from error


def _unlicensed(card: str) -> tuple[str, ...]:
    """One warning about the sources of the training text without a licence."""
    rows = [line.split("|") for line in section(card, "Training text").splitlines() if line.startswith("| ")]
    names = [cells[1].strip() for cells in rows if cells[-2].strip() == NOT_STATED]
    if not names:
        return ()
    return (f"no licence is stated for the training text {', '.join(names)}; give each source its key `license`",)


def folder_named(repo: str) -> Path | None:
    """The folder that a path names; None for `OWNER/NAME` of the hub. Raises `SpecError` for anything else."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if repo.startswith((".", "/", "~")):
        return Path(repo).expanduser()
    try:
        validate_repo_id(repo)
        if repo.count("/") == 1:
            return None
        reason = "there is no owner"
    except HFValidationError as error:
        reason = str(error).splitlines()[0].rstrip(".")
    raise SpecError(f"REPO {repo!r} is no OWNER/NAME of the hub ({reason}), and a folder begins with ./ or /")


def complete_card(folder: Path, model: str, license: str | None, repo: str | None) -> tuple[str, str]:
    """The text of the card with its licence, and the licence. Snippets name the `repo`, if there is one."""
    import yaml
    from huggingface_hub import ModelCard

    if not (folder / CARD).is_file():
        raise SpecError(f"{model} has no {CARD}, which says what it is; push a model that `promote` or `adapter` wrote")
    try:
        card = ModelCard((folder / CARD).read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise SpecError(f"{folder / CARD} has a broken header ({str(error).splitlines()[0]}); correct it") from error
    chosen = license or card.data.get("license")
    if not chosen:
        raise SpecError(f"no licence is known for {model}; choose one for it, such as --license apache-2.0")
    card.data["license"] = chosen
    if (folder / "modules.json").is_file():
        card.data["library_name"] = card.data.get("library_name") or LIBRARY
    text = str(card)
    return (text if repo is None else text.replace(SNIPPET, f'"{repo}"')), str(chosen)


def _files_of(folder: Path) -> list[Path]:
    """The model's files without the card and what MLflow added. Raises `SpecError` for a kind that may hold code."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (CARD, *FOR_MLFLOW)]
    unsafe = [path.name for path in paths if path.suffix not in SAFE]
    if unsafe:
        raise SpecError(f"{folder} holds {', '.join(unsafe)}; only {', '.join(sorted(SAFE))} are pushed: take it out")
    return paths


def _send(repo: str, files: dict[str, Path], card: str, public: bool) -> str:
    """Makes the repository if there is none, and commits all files at once; returns the commit's address."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    import babeltune

    operations = [CommitOperationAdd(name, path) for name, path in files.items()]
    operations.append(CommitOperationAdd(CARD, card.encode()))
    disable_progress_bars()  # ours says that it is sent
    hub = HfApi(token=os.environ[TOKEN])
    tell(f"sending it to {hub.endpoint}")
    try:
        hub.create_repo(repo, private=not public, exist_ok=True)
        message = f"By babeltune {babeltune.__version__}"
        return str(hub.create_commit(repo, operations, commit_message=message).commit_url)
    except Exception as error:  # its client fails in the ways of httpx, of the hub, and of the file system
        reason = from_network(error) or (str(error).strip() or type(error).__name__).splitlines()[0]
        todo = f"see that {TOKEN} may write there and that the hub answers, then push again"
        raise PromotionError(f"{hub.endpoint} did not take {repo} ({reason}); {todo}") from error
