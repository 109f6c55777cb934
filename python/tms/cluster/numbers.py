"""A small number for each instance, for protocols that name instances by integers.

    instance-number/{number:010}   the id of the instance     in the map `metadata`

* A number belongs to one id for ever, also while no instance has that id; the first is 1.
* A free number is taken by a compare-and-set, so two instances never share one.
"""

from tms.errors import StorageUnavailable
from tms.model.keys import INSTANCE_NUMBER_PREFIX, instance_number_key, prefix_stop
from tms.store.base import Map, pages

_ATTEMPTS = 64
_SCAN_BYTES = 1 << 20


def number_of(metadata: Map, id: str) -> int:
    """The number of the instance `id`, a new one the first time. Raises `StorageUnavailable`."""
    for _ in range(_ATTEMPTS):
        numbers = _numbers(metadata)
        if id in numbers:
            return numbers[id]
        number = 1 + max(numbers.values(), default=0)
        if metadata.compare_and_set(instance_number_key(number), None, id.encode()):
            return number
    raise StorageUnavailable(
        f"Other instances took the numbers that were free for {id}. Start it again."
    )


def _numbers(metadata: Map) -> dict[str, int]:
    start = INSTANCE_NUMBER_PREFIX
    return {
        id.decode(): int(key.removeprefix(start))
        for page in pages(metadata, start, prefix_stop(start), _SCAN_BYTES)
        for key, id in page
    }
