"""The values of queues: settings, tokens, delivered messages."""

import pytest

from tms.block import decode, encode
from tms.block.received import Received, Slice
from tms.errors import Conflict, Invalid, TMSError
from tms.model.ids import MessageId
from tms.model.queue import (
    QueueSettings,
    Token,
    dead_letter_topic,
    join_tokens,
    redrive_group,
)
from tms.model.topic import Durability, TopicName

JOBS = TopicName("default", "jobs")


def test_a_token_is_read_as_it_was_written() -> None:
    for token in (Token(0, 0, 1, 0), Token(1023, 1 << 40, 255, 0xFFFFFFFF, 300)):
        assert Token.parse(str(token)) == token


@pytest.mark.parametrize(
    "text",
    ["", "1.2.3", "1.2.3.4.5.6", "-1.2.3.4", "1.2.3.+4", "0x1.2.3.4", "1.2.3.4 ", "1.2.3.4.0", "é"],
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="token"):
        Token.parse(text)


def test_neighbours_are_joined_and_others_are_not() -> None:
    one = [Token(0, 5, 1, 9), Token(0, 6, 1, 9), Token(0, 7, 1, 9, 3)]
    others = [Token(1, 10, 1, 9), Token(1, 11, 2, 9), Token(1, 12, 2, 8), Token(1, 12, 2, 8)]
    assert list(join_tokens([*one, *others])) == [Token(0, 5, 1, 9, 5), *others]
    assert [*Token(0, 5, 1, 9, 3).each()] == [Token(0, 5 + i, 1, 9) for i in range(3)]


@pytest.mark.parametrize(
    "changes",
    [
        {"lease_s": 0},
        {"lease_s": float("nan")},
        {"lease_s": 43_201},
        {"deliveries_max": 256},
        {"deliveries_max": True},
        {"backoff_first_s": 43_201},
        {"jitter": 1.5},
        {"dead_letter": "system:x"},
        {"dead_letter": "no such/name"},
        {"ordered_by": "value"},
        {"start": "soon"},
        {"outstanding_max": 0},
        {"durability": "eternal"},
        {"unknown": 1},
    ],
)
def test_settings_that_are_none_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(TMSError):
        QueueSettings().changed(changes)


def test_settings_change_but_for_what_is_fixed() -> None:
    settings = QueueSettings(ordered_by="key")
    changed = settings.changed({"lease_s": 5, "durability": "written", "ordered_by": "key"})
    assert (changed.lease_s, changed.durability) == (5, Durability.WRITTEN)
    with pytest.raises(Conflict, match="fixed"):
        settings.changed({"ordered_by": ""})


def test_dead_letters_have_a_topic_that_can_be_one() -> None:
    assert dead_letter_topic("mail", JOBS) == TopicName("default", "jobs-mail-dead")
    assert dead_letter_topic("mail", JOBS, "other:bin") == TopicName("other", "bin")
    names = {dead_letter_topic(group, JOBS) for group in ("a b", "a_b", "a:b", "x" * 255)}
    assert len(names) == 4
    for name in names:
        assert TopicName.of(*name) == name
    assert len(redrive_group("x" * 255, JOBS)) <= 255


def test_topics_of_dead_letters_of_long_names_differ_and_are_no_longer_than_before() -> None:
    """A name that fits keeps its form in each version: else a queue would lose its dead letters."""
    shop, long = TopicName("n", "shop.orders"), TopicName("n", "t." * 124 + "t")
    assert dead_letter_topic("mail", shop) == TopicName("n", "shop.orders-mail-dead")
    fits = TopicName("n", "t" * (128 - len("-mail-dead")))
    assert dead_letter_topic("mail", fits).topic == fits.topic + "-mail-dead"
    longer = TopicName("n", "t" * 119)
    assert dead_letter_topic("mail", longer).topic == "t" * 90 + "-b68ec4f53a87ea34-dead"
    names = {
        dead_letter_topic("mail", topic) for topic in (fits, longer, TopicName("n", "t" * 249))
    }
    names |= {dead_letter_topic(group, topic) for topic in (shop, long) for group in ("a.b", "a_b")}
    assert len(names) == 7
    for name in names:
        assert TopicName.of(*name) == name and len(name.topic) <= 128
    redriven = {redrive_group(group, topic) for group in ("a", "b") for topic in (shop, long)}
    assert len(redriven) == 4 and max(map(len, redriven)) <= 255


def test_slices_become_messages_with_their_tokens() -> None:
    block = encode([b"1", b"2", None], [b"a", None, b"c"], [{"h": b"x"}, None, None])
    columns = decode(block)
    received = Received(
        0xAB,
        (
            Slice(3, 100, MessageId(7, 5), 1, columns),
            Slice(3, 41, MessageId(6, 0, 4, 2), 2, columns.slice(1, 3)),
        ),
    )
    assert len(received) == 5
    found = received.messages("jobs")
    assert [(one.offset, one.id, one.key, one.value) for one in found] == [
        (100, MessageId(7, 5), b"a", b"1"),
        (101, MessageId(7, 6), None, b"2"),
        (102, MessageId(7, 7), b"c", None),
        (41, MessageId(6, 0, 4, 2), None, b"2"),
        (42, MessageId(6, 1, 4, 3), b"c", None),
    ]
    assert found[0].headers == {"h": b"x"} and found[0].timestamp_ms == 7
    assert [one.deliveries for one in found] == [1, 1, 1, 2, 2]
    tokens = [Token.parse(one.token) for one in found]
    assert [str(token) for token in join_tokens(tokens)] == received.tokens()
