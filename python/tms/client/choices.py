"""Types of arguments that take one of some words: the words for editors and type checkers, or the
enum that has them."""

from typing import Literal

from tms.block import Compression
from tms.model.keys import Partitioner
from tms.model.snapshot import Isolation
from tms.model.topic import Cleanup, Durability

DurabilityChoice = Durability | Literal["none", "written", "synced"]
CompressionChoice = Compression | Literal["none", "lz4", "zstd"]
CleanupChoice = Cleanup | Literal["delete", "compact", "compact,delete", "delete,compact"]
PartitionerChoice = Partitioner | Literal["crc32c", "murmur2"]
IsolationChoice = Isolation | Literal["committed", "uncommitted"]
