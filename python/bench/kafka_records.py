"""The conversion of Kafka's record batches: from a producer to a block, from a block to consumers.

CPU time a message in this process, checksums of both sides included: the best and the median of
interleaved runs. Beside it the library's parser alone, from a batch into lists of keys and values.
"""

from collections.abc import Callable
from functools import partial

from aiokafka.record._crecords import DefaultRecordBatch

from bench.report import Goal, Report, Sample, interleaved, measured, median
from bench.targets import Setup, values
from tests.compat.kafka.records_batches import TIME_MS, Record, batch
from tms.block import place
from tms.compat.kafka.records import RecordLimits, decode, encode
from tms.model.message import StoredBlock

SHAPES = [(1, 100), (16, 100), (640, 100), (640, 1_024)]  # records of a batch, bytes of a value
MESSAGES = 6_400  # of a run
LIMITS = RecordLimits(16 << 20, 32 << 20, 8 << 20)


def run(setup: Setup, report: Report) -> None:
    """Each shape of batch, both ways."""
    report.title("Kafka's record batches ⇄ blocks, keys of 12 bytes, no headers")
    for count, size in SHAPES:
        cells = values(size)
        sent = batch(
            [Record(b"key-%08d" % at, cells[at % len(cells)]) for at in range(count)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
        )
        (block,) = decode(sent, LIMITS).blocks
        place(block, 1_000)
        stored = StoredBlock(0, TIME_MS, count - 1, bytes(block))
        works: dict[str, Callable[[], object]] = {
            "batch → block": partial(decode, sent, LIMITS),
            "block → batch": partial(encode, stored),
            "aiokafka: batch → lists": partial(_parsed, sent),
        }
        samples = interleaved(
            {name: partial(_repeated, work, count) for name, work in works.items()},
            10 if setup.quick else 40,
        )
        for name, its in samples.items():
            goal = (
                Goal(at_most=400) if (count, size) == (640, 100) and "lists" not in name else None
            )
            what = f"{count} × {size} B, {name}"
            best = min(map(_ns, its))
            report.line("kafka_records", f"{what}, best", best, "ns/message", goal, {name: its})
            report.line("kafka_records", f"{what}, median", median(its, _ns), "ns/message")


def _ns(sample: Sample) -> float:
    return sample.cpu_s / sample.messages * 1e9


def _repeated(work: Callable[[], object], count: int) -> Sample:
    def repeated() -> int:
        for _ in range(MESSAGES // count):
            work()
        return MESSAGES

    return measured(repeated)


def _parsed(sent: bytes) -> tuple[list[bytes], list[bytes]]:
    keys, cells = [], []
    parsed = DefaultRecordBatch(sent)
    assert parsed.validate_crc()
    for record in parsed:
        keys.append(record.key)
        cells.append(record.value)
    return keys, cells
