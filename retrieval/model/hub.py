"""Repositories of the Hugging Face Hub: download and upload of model files, with one-line errors.

`HF_TOKEN` and `HF_ENDPOINT` are those of huggingface_hub, which also keeps the downloads in its cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retrieval.errors import InputError, LookalikeError
from retrieval.files import sha256_of
from retrieval.machine.extras import needs
from retrieval.model.archive import is_archive
from retrieval.model.plugged import is_reference

CONFIG = "config.json"
MODEL_FILES = ("model.onnx", "model.zip")  # images alone; images and text
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_SHA256 = re.compile(r"[0-9a-f]{64}")  # name of a large file in the cache; others have a SHA-1 of Git


def is_repository(name: str) -> bool:
    """Return whether a text has the form USER/NAME of a repository."""
    return _REPOSITORY.fullmatch(name) is not None


def model_name(file: Path) -> str:
    """Return the name of a model file in a repository.

    Raises:
        InputError: It names the embedder of a plug-in.
    """
    with file.open("rb") as opened:
        if is_reference(opened.read(1)):
            raise InputError(f"{file}: names a plug-in, which others may not have; publish an ONNX file")
    return MODEL_FILES[is_archive(file)]


def download(repository: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Download files of a repository, unless they are in the cache, and return their folder.

    Args:
        repository: USER/NAME.
        patterns: Names of the files, with wildcards.
        revision: Branch, tag or commit; `None` for the newest state.

    Raises:
        InputError: There is no such repository or revision, or it requires a login.
        LookalikeError: The hub cannot be reached.
    """
    hub = _import_hub()
    with one_line(repository):
        return Path(
            hub.snapshot_download(
                repository, revision=revision, allow_patterns=list(patterns), library_name="lookalike"
            )
        )


def check_download(repository: str, folder: Path) -> None:
    """Compare the large files of a download with the SHA-256 that the hub states: their names in its cache.

    Args:
        repository: USER/NAME, for messages.
        folder: What `download` returned.

    Raises:
        LookalikeError: A file is damaged; it is deleted.
    """
    for file in folder.iterdir():
        stored = file.resolve()
        if _SHA256.fullmatch(stored.name) and sha256_of(stored) != stored.name:
            stored.unlink()
            raise LookalikeError(f"{repository}: {file.name} was damaged, and is deleted; get it again")


def download_model(repository: str, revision: str | None = None) -> Path:
    """Download the model file of a repository that `upload` filled, and check its fingerprint.

    Raises:
        InputError: As for `download`; or the repository has no model of Lookalike.
        LookalikeError: The hub cannot be reached, or the file is damaged.
    """
    return model_in(download(repository, [CONFIG, *MODEL_FILES], revision), repository)


def model_in(folder: Path, name: str | None = None) -> Path:
    """Return the model file of a folder with the files of a repository, after a check of its fingerprint.

    Args:
        folder: Folder.
        name: Name in error messages; `None` for the folder.

    Raises:
        InputError: It has no model of Lookalike.
        LookalikeError: The file is damaged.
    """
    where = name or str(folder)
    file = next((folder / name for name in MODEL_FILES if (folder / name).is_file()), None)
    try:
        fingerprint = json.loads((folder / CONFIG).read_text())["lookalike"]["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{where}: not a model of Lookalike (no {CONFIG} with its fingerprint)"
        raise InputError(f"{what}; export other models with `lookalike export`") from error
    if file is None:
        raise InputError(f"{where}: has none of {', '.join(MODEL_FILES)}; publish it again")
    if sha256_of(file) != fingerprint:
        what = f"{where}: {file.name} is not the file that was published"
        raise LookalikeError(f"{what}; delete {file} and get it again")
    return file


def upload(folder: Path, repository: str, message: str, *, private: bool, revision: str | None = None) -> str:
    """Upload a folder as one commit, and return the URL of the repository.

    Args:
        folder: Files to upload; others in the repository stay.
        repository: USER/NAME, created if it does not exist.
        message: Commit message.
        private: Whether a new repository is private.
        revision: Branch, which must exist; `None` for the main branch.

    Raises:
        InputError: The token is missing or may not write, or the name is invalid.
        LookalikeError: The hub cannot be reached.
    """
    hub = _import_hub()
    with one_line(repository):
        api = hub.HfApi(library_name="lookalike")
        url = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message, revision=revision)
    return str(url)


def _import_hub() -> Any:
    try:
        import huggingface_hub  # slow to import
    except ModuleNotFoundError as error:
        raise InputError(f"the hub {needs('huggingface_hub')}") from error
    return huggingface_hub


@contextmanager
def one_line(repository: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub into ours: what failed, and what to do."""
    from huggingface_hub import errors

    try:
        with cache_while_unreachable(repository):
            yield
    except errors.GatedRepoError as error:
        hint = "accept its terms on its page, and set HF_TOKEN or run `hf auth login`"
        raise InputError(f"{repository}: its owner requires a login; {hint}") from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{repository}: there is no such revision; see its page for branches") from error
    except errors.RepositoryNotFoundError as error:
        hint = "check the name; a private one needs HF_TOKEN or `hf auth login`"
        raise InputError(f"{repository}: there is no such repository; {hint}") from error
    except (errors.HFValidationError, errors.LocalTokenNotFoundError, ValueError) as error:
        raise InputError(f"{repository}: {_first_line(error)}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status in (401, 403):
            hint = "set HF_TOKEN to a token with write access, or run `hf auth login`"
            raise InputError(f"{repository}: not permitted; {hint}") from error
        raise LookalikeError(f"{repository}: {_first_line(error)}; try again later") from error
    except (errors.HTTPError, OSError) as error:  # the first is of httpx or httpx2, as the hub's version is
        reason, remedy = _first_line(error.__cause__ or error), "check the network"
        raise LookalikeError(f"{repository}: the hub cannot be reached ({reason}); {remedy}") from error


@contextmanager
def cache_while_unreachable(where: str, otherwise: str = "set HF_ENDPOINT to a mirror") -> Iterator[None]:
    """Let libraries read the cache of the hub alone while it cannot be reached.

    Otherwise they repeat their requests for a minute; no setting of huggingface_hub shortens this.

    Args:
        where: Beginning of the error message.
        otherwise: What the user can do without this hub, for the message.

    Raises:
        LookalikeError: The hub cannot be reached, and the cache lacks a file.
    """
    hub = _import_hub()
    session, reachability = hub.get_session(), _Reachability(hub)
    hooks = session.event_hooks
    session.event_hooks = {**hooks, "request": [reachability.check, *hooks["request"]]}
    try:
        yield
    except Exception as error:  # the libraries around the hub raise many classes
        if reachability.problem:
            what = f"{where}: the hub cannot be reached ({reachability.problem})"
            raise LookalikeError(f"{what}; {reachability.remedy}, or {otherwise}") from error
        raise
    finally:
        session.event_hooks = hooks


class _Reachability:
    """Whether the hub can be reached, found out before the first request to it.

    Attributes:
        problem: Why it cannot be reached; empty if it answers, `None` before the first request.
        remedy: What to do about it.
    """

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self.problem: str | None = None
        self.remedy = ""

    def check(self, _: object) -> None:
        """Refuse a request, as the offline mode of huggingface_hub does, if the hub cannot be reached."""
        if self.problem is None:
            self.problem = ""  # our own request passes
            self._find_problem()
        if self.problem:
            raise self.hub.errors.OfflineModeIsEnabled(self.problem)

    def _find_problem(self) -> None:
        constants = self.hub.constants
        if constants.HF_HUB_OFFLINE:
            self.problem, self.remedy = "HF_HUB_OFFLINE is set", "unset it"
            return
        try:
            self.hub.get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        except self.hub.errors.HTTPError as error:
            self.problem, self.remedy = f"{constants.ENDPOINT}: {_first_line(error)}", "check the network"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
