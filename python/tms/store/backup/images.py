"""The open images of a store: the client of a backup begins one, reads its files in pieces, and
ends it.

Invariants

* At most `IMAGES_MAX` exist; an image that is not read for `IDLE_S` ends by itself. Until it ends,
  deleted and compacted rows keep their space.
"""

import secrets
import threading
from dataclasses import dataclass

from tms.errors import Closed, Invalid, NotFound, Overloaded
from tms.model.backup import CHUNK_BYTES_MAX, FILES_MAX, BackupBegun, ImageFile
from tms.runtime.clock import Clock
from tms.store.base import Store, StoreImage

IMAGES_MAX = 4
IDLE_S = 600.0


@dataclass(slots=True)
class _ReadImage:
    """An image, and the time of its last read."""

    image: StoreImage
    used_s: float


class Images:
    """The images of an engine, as `BackupsApi` serves them. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._taking = threading.Lock()
        self._lock = threading.Lock()
        self._images: dict[str, _ReadImage] = {}
        self._closed = False

    def begin(self) -> BackupBegun:
        """Take an image. Raises `Overloaded`, and the errors of `Store.image`."""
        self.tidy()
        with self._taking:
            if len(self._images) >= IMAGES_MAX:
                raise Overloaded(
                    f"{IMAGES_MAX} backups are being made. Try again when one of them has ended, "
                    f"which it does by itself when it is not read for {IDLE_S:.0f} s."
                )
            image = self._store.image()
            moment_ms = self._clock.now_ms()
            id = secrets.token_hex(16)
            with self._lock:
                if self._closed:
                    image.release()
                    raise Closed("The engine is closed; open it again.")
                self._images[id] = _ReadImage(image, self._clock.monotonic_s())
        size = sum(file.bytes for file in image.files)
        return BackupBegun(id, moment_ms, len(image.files), size)

    def files(self, id: str, after: int = 0, limit: int = FILES_MAX) -> list[ImageFile]:
        """Files of an image, in its order. Raises `NotFound`."""
        return list(self._find(id).files[after : after + limit])

    def read(self, id: str, file: int, start: int = 0, bytes_max: int = CHUNK_BYTES_MAX) -> bytes:
        """Bytes of the file with a number. Raises `NotFound`, `Invalid`, `StorageUnavailable`."""
        image = self._find(id)
        if file >= len(image.files):
            raise Invalid(
                f"The backup has files 0 to {len(image.files) - 1}, not {file}.", field="file"
            )
        return image.read(image.files[file], start, bytes_max)

    def end(self, id: str) -> None:
        """Release an image. Raises `NotFound`."""
        with self._lock:
            ended = self._images.pop(id, None)
        if ended is None:
            raise _gone(id)
        ended.image.release()

    def tidy(self) -> None:
        """End the images that are no longer read."""
        idle_s = self._clock.monotonic_s() - IDLE_S
        with self._lock:
            idle = [id for id, one in self._images.items() if one.used_s < idle_s]
            ended = [self._images.pop(id) for id in idle]
        for one in ended:
            one.image.release()

    def close(self) -> None:
        """End all images."""
        with self._lock:
            self._closed = True
            ended, self._images = list(self._images.values()), {}
        for one in ended:
            one.image.release()

    def _find(self, id: str) -> StoreImage:
        with self._lock:
            known = self._images.get(id)
            if known is None:
                raise _gone(id)
            known.used_s = self._clock.monotonic_s()
            return known.image


def _gone(id: str) -> NotFound:
    return NotFound(
        f"There is no backup {id}: it has ended, or was not read for {IDLE_S:.0f} s. Begin another "
        "one."
    )
