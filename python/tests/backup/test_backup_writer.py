"""A directory of backups: whatever happens while a backup is made, a whole one is there."""

import contextlib
import errno
import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tms.errors import (
    AlreadyRunning,
    ConfigError,
    Conflict,
    DataCorrupt,
    NotFound,
    StorageFull,
    StorageUnavailable,
    TMSError,
    Unavailable,
)
from tms.model.backup import BackupBegun, ImageFile
from tms.store.backup import restoring, writer
from tms.store.backup.manifest import MANIFEST, PIECES_MAX, BackupPiece, by_path, encode
from tms.store.backup.restoring import restore, verify
from tms.store.backup.writer import back_up, read_manifest, stream

Files = dict[str, bytes]
OLD: Files = {
    "maps/metadata/CURRENT": b"MANIFEST-000001\n",
    "maps/t00000001+p00000+s00000000/000005.ldb": b"sealed" * 1_000,
    "maps/t00000001+p00000+s00000000/values": b"old" * 1_000,
    "FORMAT": b'{"format": 2}',
}
NEW: Files = {
    "maps/metadata/CURRENT": b"MANIFEST-000002\n",
    "maps/t00000001+p00000+s00000000/000005.ldb": b"sealed" * 1_000,
    "maps/t00000001+p00000+s00000000/values": b"old" * 1_000 + b"new" * 1_000,
    "maps/t00000001+p00000+s00000001/values": b"new" * 1_000,
    "FORMAT": b'{"format": 2}',
}


VALUES = "maps/t00000001+p00000+s00000000/values"


class Source:
    """An image of these files; `origin` is that of the file `values`."""

    def __init__(self, files: Files, fails_after: int = 1 << 30, origin: str = "one") -> None:
        self.content = files
        self._origin = origin
        self.left = fails_after
        self.ended = False
        self.read_bytes = 0

    def begin(self) -> BackupBegun:
        size = sum(map(len, self.content.values()))
        return BackupBegun(os.urandom(16).hex(), 1_700_000_000_000, len(self.content), size)

    def files(self, id: str, after: int = 0, limit: int = 2) -> list[ImageFile]:
        found = [
            ImageFile(
                path,
                len(content),
                f"{hash(content) & 0xFFFFFFFF:016x}",
                self._origin if path == VALUES else "",
            )
            for path, content in self.content.items()
        ]
        return found[after : after + 2]

    def read(self, id: str, file: int, start: int = 0, bytes_max: int = 1_000) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise Unavailable("The service is gone.")
        chunk = list(self.content.values())[file][start : start + 1_000]
        self.read_bytes += len(chunk)
        return chunk

    def end(self, id: str) -> None:
        self.ended = True


def restored(backup: Path, to: Path) -> Files:
    restore(backup, to)
    return files_in(to)


def files_in(folder: Path) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A directory with a backup of `OLD`."""
    back_up(Source(OLD), tmp_path / "backup", "1.0")
    return tmp_path / "backup"


def test_a_backup_comes_back_as_it_was(backup: Path, tmp_path: Path) -> None:
    assert restored(backup, tmp_path / "data") == OLD
    assert verify(backup).pieces[-1].path == "FORMAT"


def test_a_backup_and_what_is_restored_are_closed_to_other_users(
    backup: Path, tmp_path: Path
) -> None:
    restored(backup, tmp_path / "data")
    assert [one.stat().st_mode & 0o777 for one in (backup, tmp_path / "data")] == [0o700] * 2


def test_the_next_backup_copies_what_is_new_and_takes_the_place_of_the_first(
    backup: Path, tmp_path: Path
) -> None:
    first = read_manifest(backup)
    source = Source(NEW)
    kept = back_up(source, backup, "1.0")
    assert (kept.copied_files, kept.copied_bytes) == (3, 6_016)
    assert source.read_bytes == 6_016
    assert source.ended
    assert kept.manifest.parent == first.id
    assert restored(backup, tmp_path / "data") == NEW
    there = {path for path in files_in(backup) if path.startswith("files/")}
    assert there == {file.place for file in kept.manifest.pieces}


def test_of_a_file_that_grew_what_is_new_is_copied_as_another_piece(
    backup: Path, tmp_path: Path
) -> None:
    first = by_path(read_manifest(backup).pieces)[VALUES]
    place = backup / first[0].place
    inode = place.stat().st_ino
    manifest = back_up(Source(NEW), backup, "1.0").manifest
    pieces = by_path(manifest.pieces)[VALUES]
    assert pieces[:1] == first
    assert [(piece.start, piece.bytes) for piece in pieces] == [(0, 3_000), (3_000, 3_000)]
    assert (place.stat().st_ino, place.read_bytes()) == (inode, b"old" * 1_000)
    assert (backup / pieces[1].place).read_bytes() == b"new" * 1_000
    assert manifest.files == len(NEW)
    assert manifest.bytes == sum(map(len, NEW.values()))
    assert back_up(Source(NEW), backup, "1.0").copied_files == 0
    assert verify(backup) == read_manifest(backup)
    assert restored(backup, tmp_path / "data") == NEW


def _shorter(files: Files) -> Files:
    return {**files, VALUES: files[VALUES][:10]}


@pytest.mark.parametrize(
    "damage",
    [lambda piece: None, lambda piece: piece.unlink(), lambda piece: os.truncate(piece, 2_999)],
)
@pytest.mark.parametrize("files", [NEW, _shorter(NEW)])
@pytest.mark.parametrize("origin", ["one", "two", ""])
def test_a_file_that_did_more_than_grow_is_copied_whole(
    damage: Callable[[Path], None], files: Files, origin: str, backup: Path, tmp_path: Path
) -> None:
    place = backup / by_path(read_manifest(backup).pieces)[VALUES][0].place
    damage(place)
    grew = (place.exists() and place.stat().st_size == 3_000) and (files, origin) == (NEW, "one")
    back_up(Source(files, origin=origin), backup, "1.0")
    assert len(by_path(read_manifest(backup).pieces)[VALUES]) == 1 + grew
    assert restored(backup, tmp_path / "data") == files


def test_a_piece_that_is_there_is_not_written_again_when_its_file_is(backup: Path) -> None:
    back_up(Source(NEW), backup, "1.0")
    first, second = by_path(read_manifest(backup).pieces)[VALUES]
    (backup / first.place).unlink()
    before = files_in(backup)
    with pytest.raises(Unavailable):
        back_up(Source({**NEW, "FORMAT": b"other"}, fails_after=6), backup, "1.0")
    assert files_in(backup) == before
    back_up(Source(NEW), backup, "1.0")
    assert len(by_path(read_manifest(backup).pieces)[VALUES]) == 1
    assert not (backup / second.place).exists()


def test_a_file_of_many_pieces_is_copied_whole_again(backup: Path, tmp_path: Path) -> None:
    seen = []
    for size in range(3_001, 3_001 + PIECES_MAX):
        files = {**OLD, VALUES: (b"old" * 2_000)[:size]}
        copied = back_up(Source(files), backup, "1.0").copied_bytes
        seen.append((len(by_path(read_manifest(backup).pieces)[VALUES]), copied))
    assert seen[:-1] == [(number, 1) for number in range(2, PIECES_MAX + 1)]
    assert seen[-1] == (1, size)
    assert restored(backup, tmp_path / "data") == files
    there = {path for path in files_in(backup) if path.startswith("files/")}
    assert there == {piece.place for piece in read_manifest(backup).pieces}


def test_a_file_that_is_missing_is_copied_anew(backup: Path, tmp_path: Path) -> None:
    (backup / read_manifest(backup).pieces[1].place).unlink()
    assert back_up(Source(OLD), backup, "1.0").copied_files == 1
    assert restored(backup, tmp_path / "data") == OLD


def test_a_stream_unpacks_to_a_backup(tmp_path: Path) -> None:
    out = io.BytesIO()
    stream(Source(OLD), out, "1.0")
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        assert archive.getnames()[-1] == MANIFEST
        archive.extractall(tmp_path / "backup", filter="data")
    assert restored(tmp_path / "backup", tmp_path / "data") == OLD
    assert back_up(Source(NEW), tmp_path / "backup", "1.0").copied_bytes == 6_016


# --- failures -------------------------------------------------------------------------------------


def test_a_source_that_fails_leaves_the_backup_from_before(backup: Path, tmp_path: Path) -> None:
    before = files_in(backup)
    source = Source(NEW, fails_after=2)
    with pytest.raises(Unavailable):
        back_up(source, backup, "1.0")
    assert source.ended
    assert files_in(backup) == before
    assert restored(backup, tmp_path / "data") == OLD


STEPS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}


def _killed_at(step: int, do: Callable[[], object]) -> bool:
    """True if a process that did this was killed before its nth change of the file system."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in STEPS:
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(count)
        try:
            do()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_killed_at_every_step_a_whole_backup_is_there(tmp_path: Path) -> None:
    seen, step = set(), 0
    while True:
        place = tmp_path / str(step)
        back_up(Source(OLD), place / "backup", "1.0")
        killed = _killed_at(step, partial(back_up, Source(NEW), place / "backup", "1.0"))
        found = restored(place / "backup", place / "data")
        assert found in (OLD, NEW)
        seen.add(found == NEW)
        back_up(Source(NEW), place / "backup", "1.0")
        assert restored(place / "backup", place / "again") == NEW
        if not killed:
            break
        step += 1
    assert step > 20
    assert seen == {False, True}


def test_a_first_backup_that_was_killed_is_none_and_is_made_again(tmp_path: Path) -> None:
    for step in (0, 3, 8, 12):
        place = tmp_path / str(step)
        assert _killed_at(step, partial(back_up, Source(OLD), place / "backup", "1.0"))
        with pytest.raises(NotFound):
            restore(place / "backup", place / "data")
        back_up(Source(OLD), place / "backup", "1.0")
        assert restored(place / "backup", place / "data") == OLD


def test_a_restore_that_was_killed_is_no_data_directory_and_is_done_again(
    backup: Path, tmp_path: Path
) -> None:
    step = 0
    while True:
        data = tmp_path / f"data{step}"
        killed = _killed_at(step, partial(restore, backup, data))
        if not killed:
            break
        if (data / "FORMAT").exists():  # only the note that it was not done yet is left
            assert files_in(data) == {**OLD, "RESTORING": b""}
        else:
            assert restored(backup, data) == OLD
        step += 1
    assert step > 15


SYNCS = 12  # of a backup of NEW


@contextlib.contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, syncs: int = 0) -> Iterator[None]:
    """Let the disk be full after so many syncs."""
    left, fsync = syncs, os.fsync

    def sync(fd: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", sync)
        yield


@pytest.mark.parametrize("step", range(SYNCS))
def test_a_full_disk_leaves_the_backup_from_before_and_no_half(
    step: int, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_in(backup)
    with full_disk(monkeypatch, step), pytest.raises(StorageFull, match="still whole"):
        back_up(Source(NEW), backup, "1.0")
    if step < SYNCS - 1:
        assert files_in(backup) == before
    else:  # the new manifest is there, and may not survive power loss: then the old one is
        assert restored(backup, tmp_path / "data") == NEW
        (backup / MANIFEST).write_bytes(before[MANIFEST])
    assert restored(backup, tmp_path / "old") == OLD
    back_up(Source(NEW), backup, "1.0")
    assert restored(backup, tmp_path / "new") == NEW


def test_a_backup_takes_so_many_syncs(backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(fd), fsync(fd)))
    back_up(Source(NEW), backup, "1.0")
    assert len(seen) == SYNCS


def test_a_full_disk_leaves_no_half_restored(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch), pytest.raises(StorageFull, match="Nothing was restored"):
        restore(backup, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert restored(backup, tmp_path / "data") == OLD


@pytest.mark.parametrize("made", [False, True])
def test_a_restore_that_fails_at_any_step_leaves_nothing(
    made: bool, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    if made:
        data.mkdir()
    step = 0
    while not (data / "FORMAT").exists():
        with full_disk(monkeypatch, step), contextlib.suppress(StorageFull):
            restore(backup, data)
        assert files_in(data) in ({}, OLD)
        assert data.exists() is made or (data / "FORMAT").exists()
        step += 1
    assert step > 8


def test_two_restores_to_one_directory_at_a_time_are_refused(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, copy, refusals = tmp_path / "data", restoring._copy, []

    def meanwhile(backup: Path, file: BackupPiece, target: Path | None) -> None:
        with pytest.raises(AlreadyRunning, match="Another restore"):
            restore(backup, data)
        refusals.append(file)
        copy(backup, file, target)

    with monkeypatch.context() as patched:
        patched.setattr(restoring, "_copy", meanwhile)
        restore(backup, data)
    assert len(refusals) == 4
    assert files_in(data) == OLD


# --- refusals -------------------------------------------------------------------------------------


def _edited(backup: Path, change: Callable[[bytes], bytes]) -> None:
    (backup / MANIFEST).write_bytes(change((backup / MANIFEST).read_bytes()))


def _object(backup: Path) -> Path:
    return backup / read_manifest(backup).pieces[1].place


def _flipped(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


DAMAGES: dict[str, tuple[Callable[[Path], object], type[TMSError], str]] = {
    "torn manifest": (lambda b: _edited(b, lambda raw: raw[:-20]), DataCorrupt, "damaged"),
    "empty manifest": (lambda b: _edited(b, lambda _: b""), DataCorrupt, "no JSON"),
    "edited manifest": (
        lambda b: _edited(b, lambda raw: raw.replace(b'"1.0"', b'"1.1"')),
        DataCorrupt,
        "torn, or edited",
    ),
    "newer": (
        lambda b: _edited(b, lambda raw: raw.replace(b'"tms_backup": 2', b'"tms_backup": 3')),
        ConfigError,
        "format 3, and this release reads 2",
    ),
    "foreign": (lambda b: _edited(b, lambda _: b'{"a": 1}'), ConfigError, "not the manifest"),
    "no manifest": (lambda b: (b / MANIFEST).unlink(), NotFound, "no backup"),
    "missing file": (lambda b: _object(b).unlink(), DataCorrupt, "1 of 4 files"),
    "short file": (lambda b: os.truncate(_object(b), 10), DataCorrupt, "10 bytes of 6,000"),
    "flipped bit": (lambda b: _flipped(_object(b)), DataCorrupt, "checksum"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_whole_is_refused_whole(damage: str, backup: Path, tmp_path: Path) -> None:
    do, kind, words = DAMAGES[damage]
    do(backup)
    for attempt in (lambda: restore(backup, tmp_path / "data"), lambda: verify(backup)):
        with pytest.raises(kind, match=words):
            attempt()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("damage", ["edited manifest", "newer", "foreign"])
def test_nothing_is_written_where_a_manifest_cannot_be_read(damage: str, backup: Path) -> None:
    do, kind, words = DAMAGES[damage]
    do(backup)
    before = files_in(backup)
    with pytest.raises(kind, match=words):
        back_up(Source(NEW), backup, "1.0")
    assert files_in(backup) == before


def test_every_flipped_bit_of_a_manifest_is_noticed(backup: Path, tmp_path: Path) -> None:
    raw = (backup / MANIFEST).read_bytes()
    for at in range(0, len(raw), 3):
        _edited(backup, lambda _, at=at: raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])  # type: ignore[misc]
        with pytest.raises((DataCorrupt, ConfigError)):
            read_manifest(backup)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "maps/../x", "maps/a/../../x", "LOCK"])
def test_a_manifest_that_names_other_places_is_refused(
    path: str, backup: Path, tmp_path: Path
) -> None:
    import msgspec

    manifest = read_manifest(backup)
    file = msgspec.structs.replace(manifest.pieces[0], path=path)
    wrong = msgspec.structs.replace(manifest, pieces=[file, *manifest.pieces[1:]])
    (backup / MANIFEST).write_bytes(encode(wrong))
    with pytest.raises(DataCorrupt, match="names files"):
        restore(backup, tmp_path / "data")


@pytest.mark.parametrize("kept", [(1,), (0, 0), (1, 0), (0, 2), (0, 1, 1)])
def test_a_manifest_whose_pieces_do_not_follow_one_another_is_refused(
    kept: tuple[int, ...], backup: Path, tmp_path: Path
) -> None:
    import msgspec

    back_up(Source(NEW), backup, "1.0")
    manifest = read_manifest(backup)
    of_values = by_path(manifest.pieces)[VALUES]
    of_values.append(msgspec.structs.replace(of_values[1], start=7_000))
    others = [piece for piece in manifest.pieces if piece.path != VALUES]
    pieces = [others[0], *(of_values[number] for number in kept), *others[1:]]
    (backup / MANIFEST).write_bytes(encode(msgspec.structs.replace(manifest, pieces=pieces)))
    with pytest.raises(DataCorrupt, match="do not follow one another"):
        restore(backup, tmp_path / "data")


def test_a_manifest_that_names_a_file_in_two_places_is_refused(
    backup: Path, tmp_path: Path
) -> None:
    import msgspec

    manifest = read_manifest(backup)
    pieces = [*manifest.pieces[:2], manifest.pieces[0], *manifest.pieces[2:]]
    wrong = msgspec.structs.replace(manifest, pieces=pieces)
    (backup / MANIFEST).write_bytes(encode(wrong))
    with pytest.raises(DataCorrupt, match="do not follow one another"):
        restore(backup, tmp_path / "data")


@pytest.mark.parametrize("path", ["../x", "/etc/x", "maps/a/../../x", "manifest.json"])
@pytest.mark.parametrize("version", ["1", "../1"])
def test_a_service_that_names_other_places_gets_nothing_written(
    path: str, version: str, tmp_path: Path
) -> None:
    class Foreign(Source):
        def files(self, id: str, after: int = 0, limit: int = 2) -> list[ImageFile]:
            return [ImageFile(path, 1, version)]

    with pytest.raises(DataCorrupt, match="no data directory has"):
        back_up(Foreign({path: b"x"}), tmp_path / "new", "1.0")
    with pytest.raises(DataCorrupt, match="no data directory has"):
        stream(Foreign({path: b"x"}), io.BytesIO(), "1.0")
    assert set(files_in(tmp_path)) == {"new/LOCK"}


def test_a_service_that_names_fewer_files_than_it_has_gives_no_backup(tmp_path: Path) -> None:
    class Fewer(Source):
        def files(self, id: str, after: int = 0, limit: int = 2) -> list[ImageFile]:
            return super().files(id, after)[:1] if after < 2 else []

    with pytest.raises(StorageUnavailable, match="Of 4 files the image named 2"):
        back_up(Fewer(OLD), tmp_path / "new", "1.0")


def test_what_only_looks_like_an_interrupted_restore_is_left_alone(
    backup: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("RESTORING", "letter.txt"):
        (data / name).write_text("mine")
    with pytest.raises(Conflict, match=r"letter\.txt"):
        restore(backup, data)
    assert set(files_in(data)) == {"RESTORING", "letter.txt"}


def test_a_directory_that_has_something_else_is_left_alone(backup: Path, tmp_path: Path) -> None:
    other = tmp_path / "letters"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"letter\.txt"):
        back_up(Source(OLD), other, "1.0")
    with pytest.raises(Conflict, match="not empty"):
        restore(backup, other)
    with pytest.raises(Conflict, match="is a file"):
        restore(backup, other / "letter.txt")
    assert files_in(other) == {"letter.txt": b"dear"}


def test_two_backups_in_one_directory_at_a_time_are_refused(backup: Path) -> None:
    with writer._BackupDirectory(backup), pytest.raises(AlreadyRunning, match="Another backup"):
        back_up(Source(NEW), backup, "1.0")
    back_up(Source(NEW), backup, "1.0")
