"""The numbers and endpoints of instances, and records of other releases."""

import threading

import msgspec

from tms.cluster.membership import InstanceRecord
from tms.cluster.numbers import number_of
from tms.runtime.decoding import from_json
from tms.store.memory import MemoryStore
from tms.topics.sweep import open_metadata


def test_a_number_stays_with_its_id() -> None:
    metadata = open_metadata(MemoryStore(shared=True))
    assert [number_of(metadata, id) for id in ("b:7070", "a:7070", "b:7070")] == [1, 2, 1]
    assert number_of(metadata, "c") == 3
    assert number_of(metadata, "a:7070") == 2


def test_instances_that_start_together_get_different_numbers() -> None:
    metadata, numbers = open_metadata(MemoryStore(shared=True)), list[int]()
    threads = [
        threading.Thread(target=lambda id=f"i{number}": numbers.append(number_of(metadata, id)))
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 13))


def test_the_address_is_the_endpoint_of_http_and_front_ends_have_theirs() -> None:
    endpoints = {"tephra": "host:15165"}
    record = InstanceRecord("a", "https://host:7070", "1", number=3, endpoints=endpoints)
    assert record.endpoint("http") == "https://host:7070"
    assert record.endpoint("tephra") == "host:15165"
    assert record.endpoint("kafka") is None
    assert from_json(msgspec.json.encode(record), InstanceRecord) == record


def test_a_record_of_the_earlier_release_is_read() -> None:
    earlier = b'{"id":"a","address":"http://host:7070","version":"0","capacity":2,"keys":["k"]}'
    record = from_json(earlier, InstanceRecord)
    assert (record.number, record.endpoints, record.capacity) == (0, {}, 2)
    assert record.endpoint("http") == "http://host:7070"


class EarlierRecord(msgspec.Struct, frozen=True):
    """The fields that the earlier release reads."""

    id: str
    address: str
    version: str
    capacity: int = 1


def test_the_earlier_release_reads_a_record() -> None:
    record = InstanceRecord("a", "http://host", "1", 2, number=7, endpoints={"tephra": "host:1"})
    earlier = from_json(msgspec.json.encode(record), EarlierRecord)
    assert earlier == EarlierRecord("a", "http://host", "1", 2)
