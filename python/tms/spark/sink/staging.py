"""The part of an executor: one attempt of a task stages its rows in the transaction of its write.

    begin(token)   one transaction for all tasks of a write: who comes first begins it
    stage          blocks with a producer id of the attempt's own, numbered by partition
    Attempt        what the driver needs to name them in the commit

Invariants

* The blocks of an attempt count only if the driver names its producer: a failed attempt, or one
  overtaken by another attempt of the same task, leaves nothing visible.
* A request that is repeated because its answer was lost stages nothing twice.
* One request is under way while the next is filled: memory is bounded, and blocks of a partition
  stay in order.
* A batch that is in the topics already is not staged again.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import pyarrow as pa

from tms.client.transport import Transport
from tms.model.message import NewBlock
from tms.model.topic import TopicName
from tms.model.transaction import TopicBlock
from tms.spark.sink.columns import Shape
from tms.spark.sink.fence import Attempt, BatchFence, Job
from tms.spark.sink.filling import Filler
from tms.spark.sink.routing import Router, SinkTopic

REQUEST_BYTES = 4 << 20


def stage(
    transport: Transport,
    job: Job,
    shape: Shape,
    batches: Iterator[pa.RecordBatch],
    turn: int = 0,
) -> Attempt:
    """Stage these rows; `turn` is the first partition of rows that name none. Raises what is wrong
    with a row, and what keeps it from being staged: nothing of it is ever seen then."""
    if BatchFence(transport, job).is_done():
        return Attempt(job)
    producer_id = int.from_bytes(os.urandom(8), "big") >> 1 or 1
    filler = Filler(producer_id)
    router = Router(shape, lambda name: _look_up(transport, name), turn)
    with _Requests(transport, job) as requests:
        for batch in batches:
            for one in filler.add(router.route(batch), batch.nbytes):
                requests.add(one)
        for one in filler.finish():
            requests.add(one)
        requests.finish()
    staged = tuple((*place, count) for place, count in sorted(filler.blocks.items()))
    return Attempt(job, requests.transaction_id, producer_id, staged)


def _look_up(transport: Transport, name: TopicName) -> SinkTopic:
    settings = transport.describe_topic(name).settings
    return SinkTopic(name, settings.partitions, settings.message_bytes_max, settings.partitioner)


class _Requests:
    """Blocks on their way, one request after another, in a thread."""

    def __init__(self, transport: Transport, job: Job) -> None:
        self._port = transport.transactions
        self._job = job
        self._waiting: dict[TopicName, list[NewBlock]] = {}
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, "tms-stage")
        self._under_way: Future[None] | None = None
        self.transaction_id = 0

    def add(self, block: TopicBlock) -> None:
        """Take a block. Raises the error of an earlier one."""
        self._waiting.setdefault(block.topic, []).append(block.new)
        self._bytes += len(block.new.block)
        if self._bytes >= REQUEST_BYTES:
            self._send()

    def finish(self) -> None:
        """Wait until everything is staged."""
        self._send()
        self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _send(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        self._settle()
        if waiting:
            self._under_way = self._thread.submit(self._stage, waiting)

    def _settle(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _stage(self, waiting: dict[TopicName, list[NewBlock]]) -> None:
        if not self.transaction_id:
            self.transaction_id = self._job.begin(self._port)
        for topic, blocks in waiting.items():
            self._port.stage(topic, blocks, self.transaction_id)
