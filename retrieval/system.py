"""What operating systems do differently: locks, folders on disk, reads at an offset, processes, memory.

Linux on x86-64 is tested; of Windows only the choices made here are, with a stand-in for its locks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_ROOT = Path(__file__).resolve().parents[1]
_WAIT = 0.05  # seconds between two tries for a lock of Windows, which cannot be waited for without a limit
# Windows locks ranges of bytes, and lets nobody else read or write them. One byte beyond the end leaves the
# text of a lock file readable.
_LOCKED_BYTE = 0x7FFF0000

HANG_UP = getattr(signal, "SIGHUP", None)  # Windows has no such signal
NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # for `os.open`, which would wait for a writer of a FIFO


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file between processes until it is closed or the process ends; return whether that worked.

    Args:
        file: Open file.
        shared: Let others have a shared lock too. Windows has exclusive ones only.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    import msvcrt

    number = file.fileno()
    place = os.lseek(number, 0, os.SEEK_CUR)
    os.lseek(number, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
    except PermissionError:
        return False
    finally:
        os.lseek(number, place, os.SEEK_SET)
    return True


def lock(file: IO[Any]) -> None:
    """Lock an open file as `try_lock` does, and wait for that as long as necessary."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    while not try_lock(file):
        time.sleep(_WAIT)


def fsync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk; Windows has no call for that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_at(file: IO[bytes], size: int, start: int) -> bytes:
    """Read `size` bytes from an offset of a file; fewer at its end."""
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), size, start)
    file.seek(start)
    return file.read(size)


def python_command(program: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a Python process that runs a program.

    It imports our packages from where this one does, and nothing from the working folder.

    Args:
        program: Text of the program.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    return [sys.executable, "-P", "-c", program], {**os.environ, "PYTHONPATH": path}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, with the group; alone on Windows, which has no groups."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def physical_memory() -> int:
    """Return the memory of the machine, in bytes."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its size, and from the second on, numbers of bytes
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return status[1]
