# SPDX-License-Identifier: Apache-2.0
"""The folder of links: the proxy under the driver's names, the driver under the proxy's.

Invariant: a folder that exists is whole, since it is made under another name and moved; it belongs
to this user alone. Any thread, any number of processes at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import EnvironmentProblem

PRELOAD = "LD_PRELOAD"
PROXY = "libcuda.so.1"
DRIVER = "libcuda_real.so.1"
# RTLD_DI_LINKMAP of dlfcn.h.
_LINK_MAP = 2
# What LD_PRELOAD takes for the end of a name.
_SEPARATORS = " :\t\n"


@dataclass(frozen=True)
class Prepared:
    """What a program can be started with.

    Attributes:
        proxy: The proxy, with the driver beside it: what goes into LD_PRELOAD.
        driver: The file that the driver is.
    """

    proxy: Path
    driver: Path


def proxy_path() -> Path:
    """The proxy that came with the package, or with the library that PENSTOCK_LIBRARY names.

    Raises:
        EnvironmentProblem: If it is not there.
    """
    named = os.environ.get("PENSTOCK_LIBRARY")
    folders = [Path(__file__).parent, *([Path(named).parent / "preload"] if named else [])]
    for folder in folders:
        if (folder / PROXY).is_file():
            return (folder / PROXY).resolve()
    raise EnvironmentProblem(
        f"the proxy is not there: {folders[0] / PROXY}",
        remedy="reinstall penstock (pip install --force-reinstall penstock)",
    )


class _LinkMap(ctypes.Structure):
    """The beginning of the loader's struct link_map."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


def find_driver() -> Path | None:
    """The file that libcuda.so.1 is on this machine; None where there is none.

    It is loaded to be found, by the rules of the dynamic loader itself. Where the proxy stands
    before it already, it is the one behind.
    """
    try:
        library = ctypes.CDLL(PROXY)
    except OSError:
        return None
    handle = library._handle
    behind = getattr(library, "penstock_proxy_real_library", None)
    if behind is not None:
        behind.restype = ctypes.c_void_p
        handle = behind()
    found = ctypes.POINTER(_LinkMap)()
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if dlinfo(handle, _LINK_MAP, ctypes.byref(found)) != 0:
        return None
    return Path(os.fsdecode(found.contents.name)).resolve()


def prepare() -> Prepared | None:
    """Make the folder, if it is not there yet; None where there is no driver.

    Raises:
        EnvironmentProblem: If the proxy is missing, or there is no place for the folder.
    """
    driver = find_driver()
    if driver is None:
        return None
    proxy = proxy_path()
    name = hashlib.sha256(f"{proxy}\n{driver}".encode()).hexdigest()[:16]
    for parent in _parents():
        folder = parent / f"preload-{name}"
        if any(separator in str(folder) for separator in _SEPARATORS):
            continue
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(parent) and _make(folder, proxy, driver):
                return Prepared(folder / PROXY, driver)
        except OSError:
            continue
    raise EnvironmentProblem(
        "there is no folder of yours for the links that the proxy needs",
        remedy="XDG_CACHE_HOME=DIR, with a DIR that can be written and has no space in its name",
    )


def _parents() -> list[Path]:
    """Where the folder may go, the best place first."""
    cache = os.environ.get("XDG_CACHE_HOME")
    places = [Path(cache)] if cache and os.path.isabs(cache) else []
    home = os.path.expanduser("~")
    if os.path.isabs(home):
        places.append(Path(home) / ".cache")
    return [
        *(place / "penstock" for place in places),
        Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}",
    ]


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can put a library there for us to load."""
    found = folder.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & others
    )


def _make(folder: Path, proxy: Path, driver: Path) -> bool:
    """Whether the folder is there and right."""
    links = {PROXY: proxy, "libcuda.so": proxy, DRIVER: driver}
    if not folder.exists():
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        for name, target in links.items():
            (made / name).symlink_to(target)
        try:
            made.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(made, ignore_errors=True)
    return _is_ours(folder) and all(
        os.path.realpath(folder / name) == os.path.realpath(target)
        for name, target in links.items()
    )
