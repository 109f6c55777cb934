"""Members of Kafka's groups through restarts of the service: after a stable generation they go on
in it, after any of their requests; before, they join again."""

import shutil
from pathlib import Path

import pytest

import tms
from tests.kafka_kit import kafka_serving
from tests.kafka_member import GroupMember
from tests.kafka_producer import offset_of
from tms.compat.kafka.errors import ErrorCode
from tms.model.topic import TopicName, TopicSettings
from tms.store.backup.restoring import restore
from tms.store.leveldb import LevelDBStore

TOPIC, GROUP, INSTANCE = "orders", "group", "i"
NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID


def killed(data: Path) -> Path:
    """The directory as it would be if the process that has it open were killed now."""
    copy = data.with_name(data.name + "+")
    shutil.copytree(data, copy)
    return copy


# The requests of a member, each with its code, and the code of the next one after a restart.
STEPS = {
    None: (
        ("join", ErrorCode.MEMBER_ID_REQUIRED, UNKNOWN),
        ("join", NONE, UNKNOWN),
        ("sync", NONE, NONE),
        ("beat", NONE, NONE),
        ("commit", NONE, NONE),
        ("sync", NONE, NONE),  # the answer was lost
        ("commit", NONE, NONE),
        ("join", NONE, ErrorCode.ILLEGAL_GENERATION),  # the leader asks for a rebalance
        ("sync", NONE, NONE),
        ("beat", NONE, NONE),
        ("leave", NONE, UNKNOWN),
        ("beat", UNKNOWN, UNKNOWN),
    ),
    INSTANCE: (
        ("join", NONE, UNKNOWN),
        ("sync", NONE, NONE),
        ("commit", NONE, NONE),
        ("leave", NONE, UNKNOWN),
        ("beat", UNKNOWN, UNKNOWN),
    ),
}


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    ("instance", "at"), [(one, at) for one, steps in STEPS.items() for at in range(len(steps) - 1)]
)
def test_a_member_goes_on_after_a_restart_between_any_two_requests(
    instance: str | None, at: int, is_killed: bool, fast_path: Path
) -> None:
    data, member, steps = fast_path / "data", GroupMember(GROUP, TOPIC, instance), STEPS[instance]
    with kafka_serving(LevelDBStore(data, create=True)) as broker, broker.connect() as kafka:
        broker.served.service.engine.create_topic(TopicName("default", TOPIC), TopicSettings())
        member.kafka = kafka
        for name, code, _ in steps[: at + 1]:
            assert (name, getattr(member, name)()) == (name, code)
        generation = member.generation
        if is_killed:
            data = killed(data)
    with kafka_serving(LevelDBStore(data, create=False)) as broker, broker.connect() as kafka:
        member.kafka = kafka
        (name, code, _), after = steps[at + 1], steps[at][2]
        found = getattr(member, name)()
        if after is not NONE:
            assert found is after
            return
        assert found is code
        for name, code, _ in steps[at + 2 :]:
            assert (name, getattr(member, name)()) == (name, code)
        assert member.generation >= generation
        assert offset_of(kafka, GROUP, TOPIC) == 7
        assert member.assignment == b"for " + member.id.encode()


def test_a_static_member_that_was_replaced_stays_fenced(fast_path: Path) -> None:
    data, old, new = (
        fast_path / "data",
        GroupMember(GROUP, TOPIC, INSTANCE),
        GroupMember(GROUP, TOPIC, INSTANCE),
    )
    with kafka_serving(LevelDBStore(data, create=True)) as broker, broker.connect() as kafka:
        old.kafka = new.kafka = kafka
        assert [old.join(), old.sync(), new.join()] == [NONE, NONE, NONE]
        assert new.generation == old.generation, "no rebalance"
        data = killed(data)
    with kafka_serving(LevelDBStore(data, create=False)) as broker, broker.connect() as kafka:
        old.kafka = new.kafka = kafka
        assert old.beat() is old.commit() is old.join() is ErrorCode.FENCED_INSTANCE_ID
        assert new.beat() is NONE and new.sync() is NONE
        assert new.assignment == b"for " + old.id.encode()


def test_the_members_of_a_group_come_back_with_a_backup(fast_path: Path) -> None:
    data, copy, member = fast_path / "data", fast_path / "copy", GroupMember(GROUP, TOPIC)
    with kafka_serving(LevelDBStore(data, create=True)) as broker, broker.connect() as kafka:
        member.kafka = kafka
        assert member.join() is ErrorCode.MEMBER_ID_REQUIRED
        assert [member.join(), member.sync()] == [NONE, NONE]
        with tms.connect(broker.url) as bus:
            bus.backup(copy)
    restored = fast_path / "restored"
    restore(copy, restored)
    with kafka_serving(LevelDBStore(restored, create=False)) as broker, broker.connect() as kafka:
        member.kafka = kafka
        assert member.beat() is NONE
