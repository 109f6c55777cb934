"""The cases of `vectors/snapshots.json`: snapshots as Tephra's TransactionCodec writes them, and
images of all transactions as its SnapshotCodecV4 does.
"""

from collections.abc import Callable
from typing import Any

from tests.hbase_kit import NOW, image, in_progress, pointer
from tms.model.snapshot import (
    POINTERS_PER_MS,
    Fate,
    Snapshot,
    TransactionType,
    VisibilityLevel,
    encode_snapshot,
)
from tms.model.transaction_image import Fates, InProgress, TransactionImage, encode_image

LIFETIME_MS = 25 * 3_600_000
BASE = pointer(1)
OWN = Snapshot(BASE, BASE - 5, (BASE - 9, BASE - 8), (BASE - 7, BASE - 3), BASE - 7)
CASES = {
    "nothing else": Snapshot(BASE, BASE - 1, (), ()),
    "invalid and in progress": OWN,
    "checkpoints": Snapshot(
        BASE, BASE - 5, (), (), write_pointer=BASE + 4, checkpoints=(BASE + 2, BASE + 4)
    ),
    "without the current one": Snapshot(
        BASE,
        BASE - 5,
        (),
        (),
        write_pointer=BASE + 4,
        checkpoints=(BASE + 2, BASE + 4),
        level=VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT,
    ),
    "all, long": Snapshot(
        BASE,
        BASE - 5,
        (1, 2**62),
        (BASE - 6,),
        type=TransactionType.LONG,
        write_pointer=BASE,
        level=VisibilityLevel.SNAPSHOT_ALL,
    ),
}
IMAGES = {
    "nothing": TransactionImage(0, 0, 0),
    "invalid": image((1, 5, 2**40, pointer(2))),
    "in progress": image(
        (7,),
        (
            InProgress(pointer(2), NOW, pointer(3), TransactionType.SHORT, (pointer(2, 4),)),
            InProgress(pointer(1), NOW, pointer(3), TransactionType.LONG),
            InProgress(pointer(2, 4), NOW, pointer(3), None),
        ),
    ),
    "lost in crashes": image((7,), lost=((100, 200), (pointer(2), pointer(2, 9)))),
    "change sets": TransactionImage(
        NOW, pointer(1), pointer(0), (), (), {9: (b"a", b""), 10: ()}, {11: (b"\xff" * 200,)}
    ),
}


def snapshots() -> dict[str, Any]:
    """Snapshots and images of transactions."""
    good, whole = encode_snapshot(OWN), encode_image(IMAGES["change sets"])
    longer = (b"\x00\x03\x0a\x00\x00\x00\x02", b"\x00\x03\x0a\x7f\x00\x00\x02")
    return {
        "about": "Snapshots as Tephra's TransactionCodec writes them, with pointers that they show,"
        " skip or call open; and images as its SnapshotCodecV4 writes them, with fates of pointers"
        " that TMS gave and of foreign ones, which live for 25 h at most. Bytes are in hex.",
        "snapshots": [_snapshot(name, one) for name, one in CASES.items()],
        "refused": {
            "nothing": "",
            "no fields": "00",
            "cut off": good[:-1].hex(),
            "cut off in a list": good[:40].hex(),
            "a list that is too long": good.replace(*longer).hex(),
            "a field of text": (b"\x0b\x00\x0b\x00\x00\x00\x01x" + good).hex(),
            "a type that does not exist": (good[:-1] + b"\x08\x00\x06\x00\x00\x00\x03\x00").hex(),
            "a level that does not exist": (good[:-1] + b"\x08\x00\x09\x00\x00\x00\x04\x00").hex(),
        },
        "images": [_image(name, one) for name, one in IMAGES.items()],
        "refused_images": {
            "nothing": "",
            "version 3": "06" + whole.hex()[2:],
            "cut off": whole[:-1].hex(),
            "cut off in a change": whole[:-20].hex(),
            "bytes behind the end": (whole + b"\x00\x00").hex(),
            "ranges that overlap": (whole + bytes.fromhex("04 10 14 12 18 00")).hex(),
            "a list of minus one": "08000000" + "01" + "00" * 4,
            "a number without end": "08" + "ff" * 12,
        },
    }


def _snapshot(name: str, snapshot: Snapshot) -> dict[str, Any]:
    around = {1, snapshot.transaction_id, snapshot.read_pointer, snapshot.write_pointer}
    around |= {*snapshot.invalid, *snapshot.in_progress, *snapshot.checkpoints}
    asked = sorted({one + by for one in around for by in (-1, 0, 1)} - {0})
    fates = _by_fate(asked, snapshot.fate)
    assert fates["visible"]
    return {"name": name, "hex": encode_snapshot(snapshot).hex(), **fates}


def _image(name: str, one: TransactionImage) -> dict[str, Any]:
    fates = Fates(one, LIFETIME_MS)
    around = {1, one.read_pointer, one.write_pointer, *one.invalid, *in_progress(one)}
    around |= {bound for range in one.lost for bound in range}
    asked = sorted({pointer + by for pointer in around for by in (-1, 0, 1)} - {-1, 0})
    oldest = (one.time_ms - LIFETIME_MS) * POINTERS_PER_MS  # foreign, and not too old to commit
    foreign = [pointer for pointer in (1, oldest - 1, oldest, pointer_after(one)) if pointer > 0]
    return {
        "name": name,
        "hex": encode_image(one).hex(),
        "time_ms": one.time_ms,
        "read_pointer": one.read_pointer,
        "write_pointer": one.write_pointer,
        "invalid": list(one.invalid),
        "in_progress": sorted(in_progress(one)),
        "lost": [bound for range in one.lost for bound in range],
        "fates": _by_fate(asked, lambda pointer: fates.of(pointer, True)),
        "foreign_fates": _by_fate(foreign, lambda pointer: fates.of(pointer, False)),
    }


def pointer_after(one: TransactionImage) -> int:
    """A pointer that was issued elsewhere after the image."""
    return (one.time_ms + 1) * POINTERS_PER_MS


def _by_fate(pointers: list[int], fate: Callable[[int], Fate]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {one.name.lower(): [] for one in Fate}
    for one in pointers:
        found[fate(one).name.lower()].append(one)
    return found
