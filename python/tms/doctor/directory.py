"""Checks of a data directory: rights, format, owner, file system, space, and what a sync costs.

Nothing in the directory changes: the lock is looked up, not taken, and syncs are measured on a file
without a name.
"""

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tms.doctor.finding import Finding, ok, problem, warning
from tms.doctor.machine import MIB, Machine
from tms.errors import TMSError
from tms.store.leveldb.directory import check_format
from tms.store.leveldb.drivers import driver_of

_SYNCS = 9
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "virtiofs"}
_FORGETFUL = {"tmpfs", "ramfs", "devtmpfs"}


class _Mount(NamedTuple):
    point: str
    kind: str
    read_only: bool


def check(path: Path, machine: Machine) -> Iterator[Finding]:
    """All checks of the data directory at `path`."""
    if not path.exists():
        yield _can_be_made(path)
        path = _existing(path)
    elif not path.is_dir():
        yield problem("data directory", f"{path} is a file")
        return
    else:
        yield from _as_it_is(path, machine)
    yield from _file_system(path, machine)


def _as_it_is(path: Path, machine: Machine) -> Iterator[Finding]:
    status = path.stat()
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield problem(
            "data directory",
            f"{path} cannot be read and written by this user",
            f"chown -R $(id -un) {path}, or run as its owner",
        )
        return
    yield ok("data directory", str(path))
    if status.st_mode & 0o002:
        yield problem("rights of the data directory", "all may write to it", f"chmod 700 {path}")
    elif status.st_mode & 0o077:
        yield warning(
            "rights of the data directory",
            "other users may read its messages",
            f"chmod 700 {path}",
        )
    else:
        yield ok("rights of the data directory", "closed to others")
    if status.st_uid != os.geteuid():
        yield warning(
            "owner of the data directory",
            f"belongs to user {status.st_uid}, this is user {os.geteuid()}",
            f"run as user {status.st_uid}; files made by another user lock the service out",
        )
    else:
        yield ok("owner of the data directory", "this user")
    yield _format(path)
    yield _lock(path, machine)


def _format(path: Path) -> Finding:
    name = "format of the data directory"
    entries = {entry.name for entry in path.iterdir()}
    if not entries:
        return ok(name, "empty; `tms serve` will begin it")
    if "FORMAT" not in entries:
        return problem(
            name,
            f"{path} holds files but is no data directory of TMS",
            "choose an empty directory, or restore the file FORMAT if it was one",
        )
    try:
        store = check_format(path)
        driver_of(store, path)
    except TMSError as error:
        return problem(name, error.message, error.details.get("next", f"tms fsck --data {path}"))
    return ok(name, f"readable by this version: {store}")


def _lock(path: Path, machine: Machine) -> Finding:
    name = "lock of the data directory"
    try:
        status = (path / "LOCK").stat()
    except OSError:
        return ok(name, "free")
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in machine.text("proc/locks").splitlines():
        words = line.split()
        if "FLOCK" in words and device in words:
            pid = words[words.index(device) - 1]
            return warning(name, f"process {pid} has it open")
    return ok(name, "free")


def _can_be_made(path: Path) -> Finding:
    parent = _existing(path)
    if not os.access(parent, os.W_OK | os.X_OK):
        return problem(
            "data directory",
            f"{path} does not exist and cannot be made: {parent} is not writable",
            f"mkdir -p {path} as the owner of {parent}, and chown it to this user",
        )
    return ok("data directory", f"{path} does not exist yet and will be made")


def _existing(path: Path) -> Path:
    return next(part for part in (path.absolute(), *path.absolute().parents) if part.exists())


def _file_system(path: Path, machine: Machine) -> Iterator[Finding]:
    mount = _mount(path, machine)
    yield _kind(mount)
    if mount.read_only:
        fix = f"mount -o remount,rw {mount.point}"
        yield problem("mount", f"{mount.point} is mounted read-only", fix)
    else:
        yield ok("mount", "writable")
    yield _space(path)
    yield _inodes(path)
    yield _sync(path, mount)


def _mount(path: Path, machine: Machine) -> _Mount:
    """The mount that `path` is on."""
    real = os.path.realpath(path)
    best = _Mount("/", "unknown", False)
    for line in machine.text("proc/self/mounts").splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        point = words[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):
            best = _Mount(point, words[2], "ro" in words[3].split(","))
    return best


def _kind(mount: _Mount) -> Finding:
    name = "file system"
    if mount.kind in _FORGETFUL:
        return problem(name, f"{mount.kind} at {mount.point} forgets everything at a restart")
    if mount.kind in _NETWORK or mount.kind.startswith("fuse"):
        return warning(name, f"{mount.kind} at {mount.point}: locks and syncs may not hold")
    if mount.kind == "overlay":
        return warning(name, f"{mount.point} is a container's overlay, and goes with the container")
    return ok(name, mount.kind)


def _space(path: Path) -> Finding:
    usage = shutil.disk_usage(path)
    if usage.free < 1024 * MIB or usage.free < usage.total // 50:
        found = f"{usage.free // MIB:,} MiB of {usage.total // MIB:,} MiB are free"
        return problem("disk space", found)
    return ok("disk space", f"{usage.free // MIB:,} MiB free")


def _inodes(path: Path) -> Finding:
    status = os.statvfs(path)
    if status.f_files and status.f_favail < 10_000:
        return problem("inodes", f"only {status.f_favail:,} more files can be made")
    return ok("inodes", "enough")


def _sync(path: Path, mount: _Mount) -> Finding:
    """How long an fsync of a few bytes takes, as the median of a few."""
    from tms.clock import SystemClock

    clock = SystemClock()
    took_ms = []
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            for _ in range(_SYNCS):
                file.write(b"tms doctor")
                file.flush()
                began_s = clock.monotonic_s()
                os.fsync(file.fileno())
                took_ms.append((clock.monotonic_s() - began_s) * 1000)
    except OSError as error:
        return problem("sync", f"a file cannot be written and synced: {error}", "check the disk")
    median_ms = statistics.median(took_ms)
    if median_ms > 30:
        return warning(
            "sync",
            f"an fsync takes {median_ms:.1f} ms; each synced publish waits for one",
            "use a faster disk, publish from more producers at once, or use durability `written`",
        )
    if median_ms < 0.01 and mount.kind not in _FORGETFUL:
        return warning(
            "sync",
            f"an fsync takes {median_ms * 1000:.0f} µs: it cannot have reached a disk",
            "make sure that the disk's cache survives power loss, or turn it off",
        )
    return ok("sync", f"an fsync takes {median_ms:.2f} ms")
