"""Work without the modules and calls that only POSIX has, and the locks of Windows by a stand-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.model import write_model

pytest.importorskip("fcntl", reason="the locks of Windows are made of those of POSIX here")

ROOT = Path(__file__).parents[2]

# What Windows lacks is hidden from our modules; those of others would take other ways there. In place of its
# locks come ones with the same rules: of bytes, for the open file, until it is closed or the process ends.
WINDOWS = r"""
import builtins, ctypes, fcntl, os, signal, struct, subprocess, sys, types
LACKING = (
    "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK fork getuid geteuid killpg pread pwrite sched_getaffinity "
    "setsid statvfs sysconf uname"
).split()
class Os(types.ModuleType):
    name, supports_dir_fd = "nt", frozenset()
    def __getattr__(self, name):
        if name in LACKING:
            raise AttributeError(f"module 'os' has no attribute {name!r}")
        return getattr(os, name)
fewer, plain = Os("os"), builtins.__import__
def importing(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if importer.partition(".")[0] in ("retrieval", "serve"):
        if name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "posix"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "os":
            return fewer
    return plain(name, globals, locals, fromlist, level)
builtins.__import__ = importing
def locking(number, mode, size):
    assert (mode, size) == (2, 1)
    here = os.lseek(number, 0, os.SEEK_CUR)
    try:
        fcntl.fcntl(number, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, here, size, 0))  # F_OFD_SETLK
    except OSError:
        raise PermissionError(13, "Permission denied") from None
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
vars(sys.modules["msvcrt"]).update(LK_NBLCK=2, locking=locking)
def memory_status(reference):
    assert reference._obj[0] == 64
    reference._obj[1] = 8 << 30
kernel = types.SimpleNamespace(GlobalMemoryStatusEx=memory_status)
ctypes.windll = types.SimpleNamespace(kernel32=kernel)
"""


def start(program: str, *words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WINDOWS + program, *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def run(program: str, *words: str | Path) -> str:
    process = start(program, *words)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr[-3000:]
    return stdout


def test_every_module_is_imported_without_posix() -> None:
    found = run(
        "import importlib, pkgutil, retrieval, serve\n"
        "import uvicorn.supervisors\n"
        "del signal.SIGHUP\n"
        "walk = lambda p: pkgutil.walk_packages(p.__path__, p.__name__ + '.')\n"
        "names = [module.name for package in (retrieval, serve) for module in walk(package)]\n"
        "from retrieval.machine.extras import missing_extra\n"
        "for name in names:\n"
        "    try: importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if not missing_extra(error): raise\n"
        "from retrieval.system import HANG_UP, NO_WAITING, fcntl, physical_memory\n"
        "from serve.core import originals\n"
        "print(len(names), HANG_UP, NO_WAITING, fcntl, physical_memory() >> 30, originals._CAN)\n"
    )
    count, *rest = found.split()
    assert int(count) == sum(len(list((ROOT / name).rglob("*.py"))) for name in ("retrieval", "serve")) - 2
    assert rest == ["None", "0", "None", "8", "False"]


def test_a_gallery_is_built_changed_and_searched_without_posix(shop: Path, tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from retrieval import Embedder, Gallery\n"
        "from retrieval.images import shards\n"
        "gallery = Gallery.create(Path(sys.argv[2]), Embedder(sys.argv[1]))\n"
        "gallery.add(sorted(Path(sys.argv[3]).rglob('*.png')))\n"
        "hit, other = gallery.search(Path(sys.argv[3], 'green', '4.png'), k=2)\n"
        "gallery.remove([other.id])\n"
        "print(hit.path, round(hit.score, 4), len(Gallery.open(Path(sys.argv[2]))))\n"
        "print(shards.read_member(Path(sys.argv[1]), 3, 5) == Path(sys.argv[1]).read_bytes()[3:8])\n"
    )
    found = run(program, write_model(tmp_path / "model.onnx"), tmp_path / "shop.gallery", shop)
    assert found.splitlines() == [f"{shop / 'green' / '4.png'} 1.0 23", "True"]


def test_a_lock_of_windows_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    """The second process reads the holder's number in the locked file, and waits until that is killed."""
    program = (
        "from pathlib import Path\n"
        "from retrieval.files import file_lock\n"
        "def busy(file):\n"
        "    file.seek(0); print('busy', file.read(), flush=True)\n"
        "with file_lock(Path(sys.argv[1]), busy) as file:\n"
        "    file.truncate(0); file.write(str(os.getpid())); file.flush()\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    file = tmp_path / "LOCK"
    first = start(program, file)
    assert first.stdout
    assert first.stdout.readline() == "held\n"
    second = start(program, file)
    assert second.stdout
    assert second.stdout.readline() == f"busy {first.pid}\n"
    first.kill()
    first.communicate()
    assert second.stdout.readline() == "held\n"
    second.kill()
    second.communicate()
    assert file.read_text() == str(second.pid)
