"""Following: a thread of the server fills a served gallery from a folder, and keeps it like the folder.

The thread writes to the gallery as another process would; requests find what it has committed. On one or two
cores it embeds with the model of the server, and otherwise with a session of its own on all cores but one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from retrieval.errors import LookalikeError
from retrieval.gallery import Gallery
from retrieval.ingest.indexing import IngestResult
from retrieval.ingest.sources import Sources
from retrieval.ingest.watch import SECONDS
from retrieval.machine.resources import cores
from retrieval.model.embedder import Embedder
from retrieval.model.sessions import CPU
from retrieval.progress import Stage, progress_listener
from serve.core.service import SearchService

Event = IngestResult | LookalikeError | OSError
_EMBEDDING = "embedding"  # the stage of an indexing run that takes long
_log = logging.getLogger("lookalike.serve")
_PATIENCE = 60.0  # seconds to commit what is embedded


class Follower:
    """Fills and follows one gallery; a context manager that ends it and keeps what is embedded.

    Attributes:
        interrupted: What was kept of a run that was ended before it was done; empty if none was.

    Args:
        service: The gallery.
        sources: Images and metadata to begin with.
        folder: Folder to watch after that; `None` to end then.
        report: Receives the gallery, `None` if it could not be opened, and the result or error of each run,
            in the thread.
    """

    def __init__(
        self,
        service: SearchService,
        sources: Sources,
        folder: Path | None,
        report: Callable[[Gallery | None, Event], None],
    ) -> None:
        self.interrupted = ""
        self._service, self._sources, self._folder, self._report = service, sources, folder, report
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="following", daemon=True)

    def __enter__(self) -> Follower:
        self._service.indexing = Stage(_EMBEDDING, 0, None, "images")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        try:
            with progress_listener(self._observe):
                self._follow()
        except KeyboardInterrupt as stopped:  # of `_observe`
            self.interrupted = str(stopped)
        except Exception:
            _log.exception("the folder is no longer followed")
        finally:
            self._service.indexing = None

    def _follow(self) -> None:
        """Fill the gallery, then watch the folder; begin again after an error, as beside another writer."""
        gallery, problem = None, ""
        while not self._stop.is_set():
            try:
                if gallery is None:
                    gallery = self._open()
                self._fill(gallery)
                if self._folder is not None:
                    self._watch(gallery, self._folder)
                break
            except (LookalikeError, OSError) as error:
                if str(error) != problem:
                    self._report(gallery, error)
                problem = str(error)
            self._service.indexing = None
            if self._folder is None:
                break
            self._stop.wait(SECONDS)

    def _fill(self, gallery: Gallery) -> None:
        """Add the images with their table, which a watch does not know."""
        gallery.refresh()
        done = gallery.add_sources(self._sources, reindex=True, command="up", show_progress=True)
        self._report(gallery, done)
        self._service.indexing = None

    def _watch(self, gallery: Gallery, folder: Path) -> None:
        for event in gallery.watch(folder, show_progress=True, stop=self._stop):
            self._service.indexing = None
            self._report(gallery, event)
            if isinstance(event, IngestResult) and event.added and self._sources.metadata is not None:
                self._fill(gallery)

    def _open(self) -> Gallery:
        served = self._service.gallery.embedder
        threads = cores() - 1
        if served.provider == CPU and threads > 1:
            served = Embedder.open(served.path, replace(served.runtime, threads=threads))
        gallery = Gallery.open(self._service.folder, runtime=served.runtime)
        gallery.use_model(served)
        return gallery

    def _observe(self, stage: Stage) -> None:
        """Note the progress; end the thread by a KeyboardInterrupt, upon which a run commits its work."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        if stage.what == _EMBEDDING and (stage.total or self._service.indexing):
            self._service.indexing = stage
