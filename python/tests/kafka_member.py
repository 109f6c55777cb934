"""A member of a Kafka group, request by request."""

from typing import Any

from tests.kafka_kit import KafkaConnection
from tms.compat.kafka import codec
from tms.compat.kafka.errors import ErrorCode


class GroupMember:
    """A member of a group that sends a request at a time, on the connection that it has now."""

    def __init__(self, group: str, topic: str, instance: str | None = None) -> None:
        self.kafka: KafkaConnection
        self.group = group
        self.topic = topic
        self.instance = instance
        self.id = ""
        self.generation = -1
        self.assignment = b""

    @property
    def _names(self) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": self.id, "group_instance_id": self.instance}

    def join(self) -> ErrorCode:
        protocol = codec.class_of("JoinGroupRequest").JoinGroupRequestProtocol
        answer = self.kafka.ask(
            "JoinGroup",
            5,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[protocol(name="range", metadata=b"topics")],
            **self._names,
        )
        code = ErrorCode(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.id, self.generation = answer.member_id, answer.generation_id
        return code

    def sync(self) -> ErrorCode:
        made = codec.class_of("SyncGroupRequest").SyncGroupRequestAssignment
        answer = self.kafka.ask(
            "SyncGroup",
            3,
            generation_id=self.generation,
            assignments=[made(member_id=self.id, assignment=b"for " + self.id.encode())],
            **self._names,
        )
        self.assignment = answer.assignment
        return ErrorCode(answer.error_code)

    def beat(self) -> ErrorCode:
        answer = self.kafka.ask("Heartbeat", 3, generation_id=self.generation, **self._names)
        return ErrorCode(answer.error_code)

    def commit(self) -> ErrorCode:
        """Commit the offset 7 in the first partition."""
        made = codec.class_of("OffsetCommitRequest").OffsetCommitRequestTopic
        part = made.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        answer = self.kafka.ask(
            "OffsetCommit",
            8,
            generation_id_or_member_epoch=self.generation,
            topics=[made(name=self.topic, partitions=[part])],
            **self._names,
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def leave(self) -> ErrorCode:
        member = codec.class_of("LeaveGroupRequest").MemberIdentity
        leaving = member(member_id=self.id, group_instance_id=self.instance)
        answer = self.kafka.ask("LeaveGroup", 4, group_id=self.group, members=[leaving])
        return ErrorCode(answer.error_code or answer.members[0].error_code)
