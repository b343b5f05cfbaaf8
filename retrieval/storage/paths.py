"""Image files of items: the path of an item, and the items at a path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from retrieval.images.location import shown
from retrieval.storage.queries import files_by_root, ids_of_file
from retrieval.storage.records import UPLOADS, StoredItem
from retrieval.storage.store import Store

_NO_FILE = "without a file"  # folder below the gallery, never created, for items without a file


class ItemPaths:
    """Paths of the image files of a gallery's items.

    Args:
        folder: Gallery folder.
        items: Function that returns items by id.
        root: Folder of the image files, if they were moved after they were added.
    """

    def __init__(
        self, folder: Path, items: Callable[[Sequence[int]], list[StoredItem]], root: Path | None = None
    ) -> None:
        self._folder, self._items, self._moved = folder, items, root
        self._bases: dict[str, str] = {}

    def of(self, item: StoredItem) -> str:
        """Return the path of an item's file; empty if it has none."""
        return self.join(item.root, item.path)

    def shown(self, item: StoredItem) -> str:
        """Return the path of an item's file as users see it: a remote file's URL."""
        return self.locate(item.root, item.path)

    def locate(self, root: str, path: str) -> str:
        """Return the path of an item's file as users see it, by the item's root and path."""
        return shown(self.join(root, path))

    def join(self, root: str, path: str) -> str:
        """Return the path of an item's file by the item's root and path; empty if it has none."""
        if not path:
            return ""
        base = self._bases.get(root)
        if base is None:
            base = self._bases[root] = os.path.join(str(self._base(root)), "")
        return base + path if path[0] != "/" else path

    def lookup(self, ids: Sequence[int]) -> list[Path]:
        """Return the absolute path of each item's file; items without a file get a unique path of no file."""
        paths = {item.id: self.of(item) for item in self._items(ids)}
        return [Path(paths.get(i) or self._folder / _NO_FILE / str(i)).absolute() for i in ids]

    def lazy(self, ids: Sequence[int]) -> Sequence[Path]:
        """Return the same paths as `lookup`, each looked up on access: for many items, few of them used."""
        return _LazyPaths(self, ids)

    def _base(self, root: str) -> Path:
        return self._folder / (root if self._moved is None or root == UPLOADS else self._moved)


class StorePaths(ItemPaths):
    """Paths of the items of a store, which also finds the items at a path.

    Args:
        store: Gallery store.
        root: Folder of the image files, if they were moved after they were added.
    """

    def __init__(self, store: Store, root: Path | None = None) -> None:
        super().__init__(store.folder, store.items, root)
        self._store = store

    def ids_at(self, path: Path) -> Iterator[int]:
        """Yield the ids of the items whose `lookup` is a path, oldest first."""
        if (number := number_without_file(path)) is not None:
            yield number
        for root in self._roots:
            base = self._base(root).absolute()
            if path.is_relative_to(base):
                yield from ids_of_file(self._store, root, path.relative_to(base).as_posix())

    @cached_property
    def _roots(self) -> list[str]:
        return list(files_by_root(self._store))


def number_without_file(path: Path) -> int | None:
    """Return the id in a path that `ItemPaths.lookup` made for an item without a file; `None` for others."""
    return int(path.name) if path.parent.name == _NO_FILE and path.name.isdecimal() else None


class _LazyPaths(Sequence[Path]):
    def __init__(self, paths: ItemPaths, ids: Sequence[int]) -> None:
        self._paths, self._ids = paths, ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, position: Any) -> Any:
        return self._paths.lookup([self._ids[position]])[0]
