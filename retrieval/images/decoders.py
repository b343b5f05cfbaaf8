"""Processes that decode files in place of threads, which wait for Python's lock where cores are many.

A process ends when its socket is closed, so also when the process that started it is killed.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
from array import array
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np

from retrieval.errors import ImageError
from retrieval.images.load import read_bytes
from retrieval.images.location import Location
from retrieval.images.picture import File, LimitOfOne, PictureReader, TooLargeError
from retrieval.machine.malloc import keep_images
from retrieval.system import python_command

_PROGRAM = "from retrieval.images.decoders import serve; serve(0)"
_HEAD = struct.Struct("<QQ")  # bytes of the sizes of all parts, and of the pickle
_SENT = 32 * 2**20  # most bytes of a file that a process is sent
POSSIBLE = hasattr(socket, "AF_UNIX") and os.name == "posix"  # a socket is the standard input of a process

Request = tuple[Sequence[Location], pickle.PickleBuffer | None] | None
"""Places in a picture, with the bytes of its file if it is not to be opened; `None` for no picture."""


class Channel:
    """Objects sent through a socket; arrays are received without a copy.

    Args:
        connection: Stream socket, which is closed with the channel.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, value: object) -> None:
        """Send an object; raise an `OSError` if nobody receives it."""
        views: list[memoryview] = []
        text = pickle.dumps(value, protocol=5, buffer_callback=lambda view: views.append(view.raw()))
        sizes = array("Q", [view.nbytes for view in views]).tobytes()
        self._connection.sendall(_HEAD.pack(len(sizes), len(text)) + sizes + text)
        for view in views:
            self._connection.sendall(view)

    def receive(self) -> Any:
        """Wait for an object and return it; raise an `EOFError` or `OSError` if the other end is gone."""
        of_sizes, of_text = _HEAD.unpack(self._bytes(_HEAD.size))
        head = self._bytes(of_sizes + of_text)
        sizes = head[:of_sizes].cast("Q").tolist()
        data = self._bytes(sum(sizes))
        views = [data[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
        return pickle.loads(head[of_sizes:], buffers=views)

    def has_data(self) -> bool:
        """Return whether something has arrived, or the other end is gone."""
        try:
            self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._connection.close()

    def _bytes(self, size: int) -> memoryview:
        view = np.empty(size, np.uint8).data  # a bytearray would be filled, with Python's lock held
        at = 0
        while at < size:
            got = self._connection.recv_into(view[at:], flags=socket.MSG_WAITALL)
            if not got:
                raise EOFError
            at += got
        return view


class DecodingProcess:
    """A process that runs `serve`.

    Args:
        setup: What the function `setup` returns.

    Raises:
        OSError: It could not be started.
    """

    def __init__(self, setup: bytes) -> None:
        ours, theirs = socket.socketpair()
        command, environment = python_command(_PROGRAM)
        self._channel = Channel(ours)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,  # decoders print warnings on stderr
                    env=environment,
                    process_group=0,  # Ctrl-C is for us: we close it
                )
        except BaseException:
            ours.close()
            raise
        with suppress(OSError):  # it has ended already, as `is_ready` will find
            self._channel.send(setup)
        self._ready = False

    def is_ready(self, *, wait: bool) -> bool:
        """Return whether it can be asked, or wait for that.

        Raises:
            OSError, EOFError: It never will: it has ended, or cannot import what the setup needs.
        """
        if not self._ready and (wait or self._channel.has_data()):
            self._channel.receive()
            self._ready = True
        return self._ready

    def ask(self, request: object) -> Any:
        """Return the answer to a request; raise an `OSError` or `EOFError` if the process has ended."""
        self._channel.send(request)
        return self._channel.receive()

    def end(self) -> str:
        """Return how the process ended, for messages."""
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """End it, also while another thread waits for an answer, which gets an error."""
        self._process.kill()

    def close(self) -> None:
        """End it, and free what belongs to it."""
        self.kill()
        self._process.wait()
        self._channel.close()


def setup(reader: PictureReader, most: int) -> bytes | None:
    """Return what a process needs to begin; `None` if it cannot be given the reader's function.

    Args:
        reader: Reader of a picture.
        most: Most pixels of an image that the process decodes.
    """
    try:
        return pickle.dumps((reader, most))
    except Exception:  # pickle raises what it likes
        return None


def request(places: Sequence[Location]) -> Request:
    """Return what a process needs to read a picture; `None` if it cannot.

    Args:
        places: Places in the picture.
    """
    if places[0].kind == "file":
        return places, None
    try:
        data = read_bytes(places[0])
    except ImageError:  # which is found again where it is read instead
        return None
    return (places, pickle.PickleBuffer(data)) if len(data) <= _SENT else None


def serve(number: int) -> None:
    """Read pictures for another process, until it closes the socket.

    It sends what `setup` returns, and gets an answer when all is ready. Then it sends lists of what `request`
    returns, and gets the list of what was found in each picture; `None` in place of one that is too large,
    which it has to read itself.

    Args:
        number: File descriptor of the socket.
    """
    keep_images()
    channel = Channel(socket.socket(fileno=number))
    with suppress(EOFError, OSError):
        try:
            reader, most = pickle.loads(channel.receive())
        except (ImportError, AttributeError):  # of a program that is not here
            return
        channel.send(None)
        while True:
            channel.send([_answer(reader, most, request) for request in channel.receive()])


def _answer(reader: PictureReader, most: int, request: Request) -> list[File] | None:
    try:
        if request is not None:
            places, data = request
            return reader.read(
                places, LimitOfOne(most), lambda _: False, data if data is None else bytes(data)
            )
    except TooLargeError:
        pass
    return None
