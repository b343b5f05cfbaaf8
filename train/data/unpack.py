"""Unpacking of untrusted archives, without writing outside the target folder."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from retrieval.errors import LookalikeError
from retrieval.progress import Progress


def tar_files(archives: Sequence[Path], target: Path, show_progress: bool) -> None:
    """Unpack .tar archives, compressed or not.

    Raises:
        LookalikeError: An archive is damaged, or has a member outside the target folder.
    """
    for archive in archives:
        try:
            with (
                tarfile.open(archive) as tar,
                Progress(f"unpacking {archive.name}", None, "files", show=show_progress) as progress,
            ):
                for member in tar:
                    tar.extract(member, target, filter="data")
                    progress.update(1)
        except tarfile.FilterError as error:
            raise _refuse(archive, error.tarinfo.name) from error
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise _damaged(archive, error) from error


def zip_files(archives: Sequence[Path], target: Path, show_progress: bool) -> None:
    """Unpack .zip archives.

    Raises:
        LookalikeError: An archive is damaged, or has a member outside the target folder.
    """
    for archive in archives:
        try:
            with zipfile.ZipFile(archive) as file:
                members = file.infolist()
                for member in members:
                    name = PurePosixPath(member.filename.replace("\\", "/"))
                    if name.is_absolute() or ".." in name.parts or ":" in name.parts[0]:
                        raise _refuse(archive, member.filename)
                with Progress(
                    f"unpacking {archive.name}", len(members), "files", show=show_progress
                ) as progress:
                    for member in members:
                        file.extract(member, target)
                        progress.update(1)
        except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
            raise _damaged(archive, error) from error


def _refuse(archive: Path, member: str) -> LookalikeError:
    return LookalikeError(f"{archive}: refused: its member {member!r} is outside the target folder")


def _damaged(archive: Path, error: Exception) -> LookalikeError:
    return LookalikeError(f"{archive}: cannot be unpacked ({error}); delete it and fetch it again")
