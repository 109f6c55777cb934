"""Checks of a data directory: rights, file system, space. Nothing in the directory changes."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tms.cli.checks.finding import Finding, ok, problem, warning
from tms.cli.checks.machine import MIB, Machine

_FORGETFUL = {"tmpfs", "ramfs", "devtmpfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "virtiofs"}


class _Mount(NamedTuple):
    point: str
    kind: str
    read_only: bool


def check(path: Path, machine: Machine) -> Iterator[Finding]:
    """All checks of the data directory at `path`, or of the directory to make it in."""
    there = next(part for part in (path.absolute(), *path.absolute().parents) if part.exists())
    if not there.is_dir():
        fix = "choose a directory of this user with --data"
        yield problem("data directory", f"{there} is a file", fix)
        return
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        fix = f"chown -R $(id -un) {there}, or run as its owner"
        yield problem("data directory", f"{there} cannot be read and written by this user", fix)
    elif not path.exists():
        yield ok("data directory", f"{path} does not exist yet and will be made")
    else:
        yield ok("data directory", str(path))
        yield _rights(path)
    yield _file_system(there, machine)
    yield _space(there)


def _rights(path: Path) -> Finding:
    mode = path.stat().st_mode
    check = "rights of the data directory"
    if mode & 0o002:
        return problem(check, "all may write to it", f"chmod 700 {path}")
    if mode & 0o077:
        return warning(check, "other users may read its messages", f"chmod 700 {path}")
    return ok(check, "closed to others")


def _file_system(path: Path, machine: Machine) -> Finding:
    mount = _mount(path, machine)
    check = "file system"
    fix = "put the data directory on a local disk (ext4, xfs, btrfs, zfs), or a volume"
    if mount.read_only:
        found = f"{mount.point} is mounted read-only"
        return problem(check, found, f"mount -o remount,rw {mount.point}")
    if mount.kind in _FORGETFUL:
        found = f"{mount.kind} at {mount.point} forgets everything at a restart"
        return problem(check, found, fix)
    if mount.kind in _NETWORK or mount.kind.startswith("fuse"):
        found = f"{mount.kind} at {mount.point}: locks and syncs may not hold"
        return warning(check, found, fix)
    if mount.kind == "overlay":
        found = f"{mount.point} is a container's overlay, and goes with the container"
        return warning(check, found, fix)
    return ok(check, mount.kind)


def _mount(path: Path, machine: Machine) -> _Mount:
    """The mount that `path` is on."""
    real = os.path.realpath(path)
    best = _Mount("/", "unknown", False)
    try:
        lines = machine.mounts.read_text().splitlines()
    except OSError:
        return best
    for _, escaped, kind, options, *_ in map(str.split, lines):
        point = escaped.replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):
            best = _Mount(point, kind, "ro" in options.split(","))
    return best


def _space(path: Path) -> Finding:
    usage = shutil.disk_usage(path)
    free = f"{usage.free // MIB:,} MiB of {usage.total // MIB:,} MiB are free"
    if usage.free < 1024 * MIB or usage.free < usage.total // 50:
        fix = "free some, shorten retention (tms topic update --retention), or add a disk"
        return problem("disk space", free, fix)
    return ok("disk space", free)
