"""Source of the site: pages of the repository, pages made from the code, navigation and configuration.

    python docs/site build/docs && mkdocs build --config-file build/docs/mkdocs.yml

No hooks of the generator are used: Material for MkDocs is maintained until May 2027, and its successor
Zensical, which builds the same folder but is not stable yet (0.0), runs none.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import commands
import losses
import notebook
import protocols
import python_api
import repository
import settings
import yaml

HERE = Path(__file__).parent


def write(out: Path) -> None:
    """Write the source of the site into a folder, in place of an older one."""
    shutil.rmtree(out, ignore_errors=True)
    folder = out / "pages"
    repository.copy_files(folder)
    made = repository.pages()
    for part in (commands, losses, notebook, protocols, python_api, settings):
        made |= part.pages()
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copy(HERE / "site.css", folder)
    nav = _expand(yaml.safe_load((HERE / "nav.yml").read_text()), list(made))
    config = (HERE / "config.yml").read_text().replace("REPOSITORY", str(repository.ROOT))
    (out / "mkdocs.yml").write_text(config + "\n" + yaml.safe_dump({"nav": nav}, sort_keys=False))


def _expand(nav: Any, made: list[str]) -> Any:
    """Return the navigation with the made pages of a folder in place of its name."""
    if isinstance(nav, dict):
        return {title: _expand(part, made) for title, part in nav.items()}
    if isinstance(nav, list):
        return [_expand(part, made) for part in nav]
    if not nav.endswith("/"):
        return nav
    return [name for name in made if name.startswith(nav)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the source of the site.")
    parser.add_argument("out", type=Path, help="Folder to write; an older one is replaced.")
    write(parser.parse_args().out)
