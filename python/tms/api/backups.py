"""Backups: images of the store that are read in pieces. The right to read them is the right to read
everything."""

from typing import Annotated, Protocol

from msgspec import Meta, Struct

from tms.api import routes
from tms.api.operation import Codec, Form, Named, Repeat, Resource, delete, get, list_of, post
from tms.errors import Conflict, Invalid, Malformed, NotFound, StorageFull
from tms.model.access import Access
from tms.model.backup import CHUNK_BYTES_MAX, FILES_MAX, BackupBegun, ImageFile
from tms.model.message import Buffer

BEGIN_TIMEOUT_S = 120.0
BackupId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_OF_ONE = (Malformed, Invalid, NotFound)
_Number = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class FileBody(Struct):
    """A file of a backup; of two backups one with the same path and version has the same bytes, and
    of two with the same path and origin, if that is not empty, the longer begins with the shorter.
    """

    path: str
    bytes: int
    version: str
    origin: str = ""


_FILES = list_of(
    Codec(
        FileBody,
        lambda body: ImageFile(body.path, body.bytes, body.version, body.origin),
        lambda file: FileBody(*file),
    )
)


class ChunkQuery(Struct, forbid_unknown_fields=True):
    """The range of bytes of a file."""

    file: _Number = 0
    start: _Number = 0
    bytes_max: Annotated[int, Meta(ge=1, le=CHUNK_BYTES_MAX)] = CHUNK_BYTES_MAX


class BackupsApi(Protocol):
    """Backups. `tms.store.backup.images.Images` documents the promises."""

    @post(
        "backups",
        Resource.SERVICE,
        Access.MANAGE,
        repeat=Repeat.NEVER,
        timeout_s=BEGIN_TIMEOUT_S,
        statuses=(routes.CREATED,),
        alone=True,
        errors=(Conflict, StorageFull),
    )
    def begin(self) -> BackupBegun:
        """Take an image of the store. It ends by itself after ten minutes without a read."""

    @get("backups/{id}/files", Resource.SERVICE, Access.MANAGE, errors=_OF_ONE)
    def files(
        self,
        id: BackupId,
        after: Annotated[int, Meta(ge=0, description="How many to leave out.")] = 0,
        limit: Annotated[int, Meta(ge=1, le=FILES_MAX)] = FILES_MAX,
    ) -> Annotated[list[ImageFile], Named("BackupFiles", "Files.", "files", _FILES)]:
        """The files of an image, in its order."""

    @get(
        "backups/{id}/bytes",
        Resource.SERVICE,
        Access.MANAGE,
        errors=_OF_ONE,
        form=Form(query=ChunkQuery, answer={routes.BYTES: bytes}),
    )
    def read(
        self, id: BackupId, file: int, start: int = 0, bytes_max: int = CHUNK_BYTES_MAX
    ) -> Buffer:
        """Bytes of the file with a number, counted from 0 in the order of the list."""

    @delete(
        "backups/{id}", Resource.SERVICE, Access.MANAGE, repeat=Repeat.UNTIL_GONE, errors=_OF_ONE
    )
    def end(self, id: BackupId) -> None:
        """Let go of an image."""
