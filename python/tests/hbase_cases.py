"""The cases of `vectors/hbase.json`; `hbase_kit` has the rules.

Written cases state the outcome themselves, random ones take it from the rules in Python.
"""

import random
from typing import Any

from tests.hbase_kit import (
    BACK,
    DAY,
    MINE,
    NOW,
    PLAIN,
    TRANSACTION_MS,
    TX,
    Store,
    header,
    image,
    message_row,
    partition,
    payload_row,
    pointer,
    read_row,
    rows_of,
    salt,
    topic,
)
from tms.block import Flags
from tms.model.snapshot import POINTERS_PER_MS, TransactionType
from tms.model.transaction_image import InProgress

SEED = 20_261_121
Case = tuple[str, str, bytes, str]  # table, row, header, outcome


def hbase() -> dict[str, Any]:
    """The rows and their outcomes."""
    return {
        "about": "Rows of the tables in HBase, and what a coprocessor does with them. `records` are"
        " the rows of the table metadata with values in hex, null: never read; `header` is how the"
        " block begins; `reason` is kept, unsure, damaged or why nobody needs it; `dropped` is"
        " whether a flush or compaction leaves it out; `committed` is"
        " whether a committed reader gets the row, null: the read fails. `ttls`: how long a table's"
        " attributes, or those of its family, say that topics without a retention of their own keep"
        " their messages.",
        "rows": [
            *[_message(*case) for case in MESSAGE_ROWS],
            *[_payload(*case) for case in PAYLOAD_ROWS],
        ],
        "refused_rows": [{"table": table, "row": row} for table, row in refused_rows()],
        "ttls": ttls(),
        "stores": [_vector(name, store, cases) for name, store, cases in stores()],
    }


MESSAGE_ROWS = [
    (0, 0, 0, 0, 0),
    (42, 3, 1, NOW, 255),
    (42, 3, 1, NOW, 65_535),
    (42, 4, 1, NOW, 255),
    (2**32 - 1, 1_023, 99_999_999, 253_402_300_799_999, 65_535),
]
PAYLOAD_ROWS = [
    (0, 0, 0, 0, 0),
    (42, 3, NOW * POINTERS_PER_MS + 7, NOW + 1, 12),
    (2**32 - 1, 1_023, 2**63 - 1, 2**63 - 1, 65_535),
]


def _message(uid: int, part: int, segment: int, time_ms: int, sequence: int) -> dict[str, Any]:
    row = message_row(uid, part, segment, time_ms, sequence)
    return {"table": "messages", "row": row, **vars(read_row("messages", row))}  # type: ignore[arg-type]


def _payload(uid: int, part: int, at: int, time_ms: int, sequence: int) -> dict[str, Any]:
    row = payload_row(uid, part, at, time_ms, sequence)
    return {"table": "payloads", "row": row, **vars(read_row("payloads", row))}  # type: ignore[arg-type]


def refused_rows() -> list[tuple[str, str]]:
    """Rows that belong to neither table."""
    good = message_row(42, 3, 1, NOW, 255)
    staged = payload_row(42, 3, NOW * POINTERS_PER_MS, NOW, 0)
    another_day = staged[:16] + f"{NOW // DAY + 1:08x}" + staged[24:]
    return [
        ("messages", ""),
        ("messages", good[:-1]),
        ("messages", good + "0"),
        ("messages", good.upper()),
        ("messages", good[:43] + "g"),
        ("messages", good[:20] + " " + good[21:]),
        ("messages", f"{salt(42, 3) ^ 1:04x}" + good[4:]),
        ("messages", good[:16] + f"{100_000_000:08x}" + good[24:]),
        ("messages", good[:24] + "8" + good[25:]),
        ("messages", staged),
        ("payloads", good),
        ("payloads", another_day),
        ("payloads", staged[:40] + "f" + staged[41:]),
    ]


def _vector(name: str, store: Store, cases: list[Case]) -> dict[str, Any]:
    return {
        "name": name,
        "wall_ms": store.wall_ms,
        "ttl_ms": store.ttl_ms,
        "records": None if store.records is None else rows_of(store),
        "cases": [
            {
                "table": table,
                "row": row,
                "header": block.hex(),
                "reason": reason,
                "dropped": store.dropped(table, row, block),
                "committed": store.committed(row, block) if table == "messages" else None,
            }
            for table, row, block, reason in cases
        ],
    }


def stores() -> list[tuple[str, Store, list[Case]]]:
    """Stores with rows and their outcomes."""
    return [
        *written_out(),
        *broken(),
        *[(f"random {i}", *_random(random.Random(SEED + i))) for i in range(6)],
    ]


def m(
    reason: str, at: int, seq: int, block: bytes, uid: int = 1, part: int = 0, seg: int = 5
) -> Case:
    """A case of the table of messages."""
    return "messages", message_row(uid, part, seg, at, seq), block, reason


def p(reason: str, at: int, time_ms: int, flags: int = MINE, uid: int = 1) -> Case:
    """A case of the table of payloads."""
    return "payloads", payload_row(uid, 0, at, time_ms, 0), header(flags | 2, at), reason


def ttls() -> list[dict[str, Any]]:
    """The tables' retention for topics without their own."""
    forever = str(2**31 - 1)
    cases: list[tuple[str | None, str | None, int | None]] = [
        (None, None, None),
        (None, forever, None),
        (None, "86400", DAY),
        (str(7 * DAY), None, 7 * DAY),
        (str(7 * DAY), "86400", 7 * DAY),
        ("0", forever, 0),
        ("1d", "86400", None),
        ("-1", None, None),
        ("", None, None),
    ]
    return [
        {
            "attributes": {} if own is None else {"tms.ttl": own},
            "family_ttl": family,
            "ttl_ms": ttl_ms,
        }
        for own, family, ttl_ms in cases
    ]


def written_out() -> list[tuple[str, Store, list[Case]]]:
    """At least one case for each sentence of the contract."""
    dead, live, checkpoint, future = pointer(3), pointer(2), pointer(2, 1), pointer(0.01)
    both = pointer(4)  # invalid and in progress: only pointers in both lists are certain
    others = (
        InProgress(both, NOW + DAY, 0, TransactionType.SHORT),
        InProgress(live, NOW + DAY, 0, TransactionType.LONG, (checkpoint,)),
    )
    records = {
        "metadata:clock/retention": str(NOW),
        "metadata:deleted/00000002": "default:gone",
        "metadata:deleted/00000003": "default:kept after all",
        "metadata:topic/default/flights": topic(1, 7 * DAY),
        "metadata:topic/default/forever": topic(3, None),
        "metadata:partition/00000001/00000": partition(
            (4, (NOW - 6 * DAY, 9)), (5, (NOW - DAY, 7)), (6, None), floor=(NOW - 6 * DAY, 3)
        ),
        "metadata:partition/00000001/00001": partition((0, None)),
        "metadata:partition/00000001/00003": partition((1, (NOW - 6 * DAY, 9)), (3, None)),
        "metadata:producers/00000001/00000": "{}",
    }
    lost = ((pointer(4.5), pointer(4.5, 5)), (pointer(2, 100), pointer(2, 102)))
    full = Store(NOW + 60_000, DAY, records, image((both, dead), others, lost=lost))
    cases = [
        m("kept", NOW - 2 * DAY, 0, header()),
        m("deleted", NOW - 1, 0, header(), uid=2),
        m("deleted", NOW - 1, 0, header(MINE, live), uid=2),
        m("kept", NOW - 80 * DAY, 0, header(), uid=3),
        m("kept", NOW - 7 * DAY, 0, header(), part=1, seg=0),
        m("expired", NOW - 7 * DAY - 1, 0, header(), part=1, seg=0),
        m("expired", NOW - 7 * DAY - 1, 0, header(TX, live), part=1, seg=0),
        m("floor", NOW - 6 * DAY, 2, header(), seg=4),
        m("kept", NOW - 6 * DAY, 3, header(), seg=4),
        m("kept", NOW - 6 * DAY, 9, header(), seg=4),
        m("sealed", NOW - 6 * DAY, 10, header(), seg=4),
        m("sealed", NOW - 2 * DAY, 0, header(), seg=3),
        m("kept", NOW - DAY, 7, header()),
        m("sealed", NOW - DAY, 8, header(TX, 5)),
        m("kept", NOW - 1, 0, header(), seg=6),
        m("kept", NOW - 1, 0, header(), seg=7),
        m("rolled_back", NOW - 2 * DAY, 0, header(MINE | BACK, live)),
        m("rolled_back", NOW - 2 * DAY, 0, header(TX | BACK, pointer(1, 7))),
        m("kept", NOW - 2 * DAY, 0, header(BACK)),
        m("invalid", NOW - 2 * DAY, 0, header(MINE, dead)),
        m("invalid", NOW - 2 * DAY, 0, header(MINE | 2, dead)),
        m("kept", NOW - 2 * DAY, 0, header(TX, dead)),
        m("kept", NOW - 2 * DAY, 0, header(Flags.ISSUED, dead)),
        m("kept", NOW - 2 * DAY, 0, header(MINE, live)),
        m("kept", NOW - 2 * DAY, 0, header(Flags.COUNTS_MESSAGES)),
        m("kept", NOW - 2 * DAY, 0, header(MINE | Flags.COUNTS_MESSAGES, live)),
        m("invalid", NOW - 2 * DAY, 0, header(MINE | Flags.COUNTS_MESSAGES, dead)),
        m("rolled_back", NOW - 2 * DAY, 0, header(MINE | BACK | Flags.COUNTS_MESSAGES, live)),
        m("kept", NOW - 2 * DAY, 0, header(MINE, checkpoint)),
        m("kept", NOW - 2 * DAY, 0, header(MINE, both)),
        m("kept", NOW - 2 * DAY, 0, header(MINE, future)),
        m("kept", NOW - 2 * DAY, 0, header(MINE, pointer(2, 2))),
        m("kept", NOW - 2 * DAY, 0, header(MINE, pointer(4.5) - 1)),
        m("invalid", NOW - 2 * DAY, 0, header(MINE, pointer(4.5))),
        m("invalid", NOW - 2 * DAY, 0, header(MINE, pointer(4.5, 4))),
        m("kept", NOW - 2 * DAY, 0, header(MINE, pointer(4.5, 5))),
        m("invalid", NOW - 2 * DAY, 0, header(MINE, pointer(2, 101))),
        m("kept", NOW - 2 * DAY, 0, header(MINE, pointer(2, 102))),
        m("kept", NOW - 2 * DAY, 0, header(TX, pointer(4.5))),
        m("invalid", NOW - 1, 0, header(MINE, dead), seg=6),
        m("rolled_back", NOW - 1, 0, header(MINE | BACK, live), seg=6),
        m("invalid", NOW - 1, 0, header(MINE, dead), seg=7),
        m("invalid", NOW - 1, 0, header(MINE, dead), part=2),
        m("expired", NOW - 8 * DAY, 0, header(), part=2),
        m("sealed", NOW - 1, 0, header(), part=3, seg=2),
        m("kept", NOW - 1, 0, header(), part=3, seg=3),
        m("orphan", NOW - DAY - 1, 0, header(), uid=9),
        m("kept", NOW - DAY, 0, header(), uid=9),
        p("kept", dead - 1, NOW - DAY),
        p("invalid", dead, NOW - DAY),
        p("kept", dead, NOW - DAY, TX),
        p("kept", live, NOW - DAY),
        p("kept", live, NOW - DAY, MINE | BACK),
        p("kept", (NOW - 7 * DAY - TRANSACTION_MS) * POINTERS_PER_MS, NOW - 20 * DAY),
        p("expired", (NOW - 7 * DAY - TRANSACTION_MS) * POINTERS_PER_MS - 1, NOW),
        p("deleted", live, NOW, uid=2),
        p("orphan", (NOW - DAY - TRANSACTION_MS) * POINTERS_PER_MS - 1, NOW, uid=9),
        p("kept", (NOW - DAY - TRANSACTION_MS) * POINTERS_PER_MS, NOW - 9 * DAY, uid=9),
    ]
    no_ttl = Store(NOW, None, records, None)
    slow = Store(NOW - 30 * DAY, None, records, image())
    clockless = {key: text for key, text in records.items() if "clock" not in key}
    old = m("expired", NOW - 8 * DAY, 0, header(), part=1, seg=0)
    unsaid = {
        "metadata:clock/retention": str(NOW),
        "metadata:retention/default": str(3 * DAY),
        "metadata:topic/default/own": topic(1, 7 * DAY),
        "metadata:topic/default/none": topic(2, None, is_default=True),
        "metadata:topic/default/forever": topic(3, None),
        "metadata:topic/default/odd": topic(4, None, is_default=True).replace("true", '"true"'),
        "metadata:partition/00000002/00000": partition((5, (NOW - DAY, 7)), (6, None)),
    }
    not_noted = {key: text for key, text in unsaid.items() if not key.endswith("/default")}
    in_between = m("expired", NOW - 4 * DAY, 0, header(), uid=2)
    return [
        (
            "topics without a retention of their own, and a table that says less than TMS",
            Store(NOW, DAY, unsaid, image()),
            [
                m("kept", NOW - 3 * DAY, 0, header(), uid=2),
                m("expired", NOW - 3 * DAY - 1, 0, header(), uid=2),
                m("kept", NOW - 4 * DAY, 0, header(), uid=1),
                m("kept", NOW - 90 * DAY, 0, header(), uid=3),
                m("unsure", NOW - 90 * DAY, 0, header(), uid=4),
                m("orphan", NOW - 2 * DAY, 0, header(), uid=9),
                p("kept", (NOW - 3 * DAY - TRANSACTION_MS) * POINTERS_PER_MS, NOW, uid=2),
                p("expired", (NOW - 3 * DAY - TRANSACTION_MS) * POINTERS_PER_MS - 1, NOW, uid=2),
            ],
        ),
        (
            "a table that says more than TMS, which has not noticed yet",
            Store(NOW, 5 * DAY, unsaid, image()),
            [
                m("kept", *_place(in_between), header(), uid=2),
                m("expired", NOW - 5 * DAY - 1, 0, header(), uid=2),
            ],
        ),
        ("a table that says nothing", Store(NOW, None, unsaid, image()), [in_between]),
        (
            "TMS has not said what topics without a retention go by",
            Store(NOW, DAY, not_noted, image()),
            [m("kept", NOW - 90 * DAY, 0, header(), uid=2)],
        ),
        ("a store with everything", full, cases),
        (
            "no image and no ttl",
            no_ttl,
            [
                m("kept", NOW - 2 * DAY, 0, header(MINE, dead)),
                m("rolled_back", NOW - 2 * DAY, 0, header(MINE | BACK, dead)),
                m("kept", NOW - 90 * DAY, 0, header(), uid=9),
                old,
            ],
        ),
        ("a wall clock that is slow", slow, [m("kept", *_place(old), header(), part=1, seg=0)]),
        (
            "no time for retention was noted",
            Store(NOW, DAY, clockless, image()),
            [
                m("kept", *_place(old), header(), part=1, seg=0),
                m("kept", NOW - 90 * DAY, 0, header(), uid=9),
                m("deleted", NOW, 0, header(), uid=2),
            ],
        ),
        (
            "metadata was never read",
            Store(NOW, DAY, None, None),
            [
                m("unsure", NOW - 90 * DAY, 0, header()),
                m("unsure", NOW, 0, header(MINE | BACK, dead)),
                p("unsure", dead, NOW),
            ],
        ),
    ]


def _place(case: Case) -> tuple[int, int]:
    key = read_row(case[0], case[1])
    assert key is not None
    return key.time_ms, key.sequence


def broken() -> list[tuple[str, Store, list[Case]]]:
    """Broken records and rows: everything that they are about stays."""
    good = {
        "metadata:clock/retention": str(NOW),
        "metadata:topic/default/flights": topic(1, DAY),
        "metadata:deleted/00000002": "",
    }
    gone = m("expired", NOW - 2 * DAY, 0, header())
    spoiled = (gone[0], gone[1], b"TMSX" + gone[2][4:], "damaged")
    found: list[tuple[str, Store, list[Case]]] = []
    for name, text in {
        "no JSON": "{",
        "no object": "[1]",
        "text behind the end": topic(4, 1_000) + "x",
        "no uid": '{"retention_ms":1000}',
        "a uid that is a text": '{"uid":"4","retention_ms":1000}',
        "a uid that is too large": '{"uid":4294967296,"retention_ms":1000}',
    }.items():
        records = {**good, "metadata:topic/default/zz": text}
        cases = [gone, m("unsure", NOW, 0, header(), uid=2), m("unsure", 0, 0, header(), uid=4)]
        found.append((f"a topic's record with {name}", Store(NOW, DAY, records, image()), cases))
    for name, value in {"text": '"1d"', "nothing": "0", "a fraction": "1000.5"}.items():
        records = {**good, "metadata:topic/default/zz": f'{{"uid":4,"retention_ms":{value}}}'}
        cases = [
            gone,
            m("unsure", 0, 0, header(MINE | BACK, 5), uid=4),
            m("deleted", 0, 0, header(), uid=2),
        ]
        found.append((f"a retention of {name}", Store(NOW, DAY, records, image()), cases))
    for name, text in {
        "no JSON": "nothing",
        "no segments": '{"epoch":1,"floor":[0,0]}',
        "segments out of order": '{"segments":[{"number":2},{"number":1}],"floor":[0,0]}',
        "a segment twice": '{"segments":[{"number":2},{"number":2}],"floor":[0,0]}',
        "half an end": '{"segments":[{"number":2,"last":[1]}],"floor":[0,0]}',
        "a floor of three": '{"segments":[],"floor":[0,0,0]}',
        "a floor of texts": '{"segments":[],"floor":["1","2"]}',
    }.items():
        records = {**good, "metadata:partition/00000001/00007": text}
        cases = [gone, m("unsure", NOW - 2 * DAY, 0, header(), part=7)]
        found.append(
            (f"a partition's record with {name}", Store(NOW, DAY, records, image()), cases)
        )
    twice = {**good, "metadata:topic/default/zz": topic(1, None)}
    unsure = (*gone[:3], "unsure")
    found += [
        ("two topics with one uid", Store(NOW, DAY, twice, image()), [unsure]),
        (
            "unknown fields, no floor, no segments",
            Store(
                NOW,
                None,
                {
                    **good,
                    "metadata:topic/default/new": '{"new":[1,{}],"uid":4,"retention_ms":1000}',
                    "metadata:partition/00000001/00007": '{"segments":[],"new":[[],null]}',
                },
                image(),
            ),
            [m("kept", NOW, 0, header(), part=7), m("expired", 0, 0, header(), uid=4)],
        ),
        ("rows that are no blocks", Store(NOW, DAY, good, image()), [spoiled, *_spoiled(gone)]),
    ]
    return found


def _spoiled(gone: Case) -> list[Case]:
    table, row, block, _ = gone
    bad = [
        block[:47],
        b"",
        block[:4] + b"\x03" + block[5:],
        block[:7] + b"\x01" + block[8:],
        block[:8] + bytes(4) + block[12:],
        block[:8] + (65_537).to_bytes(4, "big") + block[12:],
        block[:24] + b"\xff" + block[25:],
        block[:44] + b"\x01" + block[45:],
    ]
    staged = payload_row(1, 0, pointer(40), NOW - 40 * DAY, 0)
    return [
        *[(table, row, one, "damaged") for one in bad],
        (table, row, block[:4] + b"\x02" + block[5:], "expired"),  # with event times
        *[("messages", one, block, "damaged") for kind, one in refused_rows() if kind == table],
        ("payloads", staged, header(MINE | 2, pointer(41)), "damaged"),
        ("payloads", staged, header(MINE | 2, pointer(40)), "expired"),
    ]


def _random(rng: random.Random) -> tuple[Store, list[Case]]:
    store, pointers = random_store(rng)
    return store, [random_case(rng, store, pointers) for _ in range(60)]


def random_store(rng: random.Random) -> tuple[Store, list[int]]:
    """Records of any kind, and the write pointers that they are about."""
    pointers = sorted(pointer(rng.uniform(0, 9), rng.randrange(9)) for _ in range(12))
    invalid = tuple(one for one in pointers if rng.random() < 0.4)
    still = [one for one in pointers if one not in invalid and rng.random() < 0.4]
    open = tuple(InProgress(one, NOW, 0, TransactionType.SHORT) for one in still)
    records = {"metadata:clock/retention": str(NOW - rng.choice([0, DAY]))}
    for uid in range(5):
        if rng.random() < 0.7:
            retention = rng.choice([None, DAY, 4 * DAY, 1_000])
            records[f"metadata:topic/n{uid}/t"] = topic(uid, retention)
        if rng.random() < 0.3:
            records[f"metadata:deleted/{uid:08x}"] = ""
        for part in range(2):
            if rng.random() < 0.7:
                low = rng.randrange(3)
                ends = [(NOW - (8 - 2 * i) * DAY, rng.randrange(9)) for i in range(low, 4)]
                segments = [*((low + i, end) for i, end in enumerate(ends[:-1])), (3, None)]
                floor = (NOW - rng.randrange(9) * DAY, rng.randrange(9))
                records[f"metadata:partition/{uid:08x}/{part:05d}"] = partition(
                    *segments, floor=floor
                )
    lost = tuple((one, one + 1) for one in pointers if one not in invalid and rng.random() < 0.2)
    shown = image(invalid, open, rng.uniform(0, 5), lost) if rng.random() < 0.8 else None
    store = Store(NOW - rng.choice([0, 2 * DAY]), rng.choice([None, DAY, 3 * DAY]), records, shown)
    return store, pointers


def random_case(rng: random.Random, store: Store, pointers: list[int], spread_ms: int = 0) -> Case:
    """A row of any kind; `spread_ms` makes times differ more."""
    uid, part = rng.randrange(6), rng.randrange(3)
    flags = rng.choice([PLAIN, PLAIN, TX, MINE, MINE, MINE, MINE | BACK, TX | BACK])
    at = rng.choice(pointers) if flags else 0
    time_ms = NOW - rng.randrange(9) * DAY - (rng.randrange(spread_ms) if spread_ms else 0)
    if rng.random() < 0.3:
        at = rng.choice(pointers)
        row, table = payload_row(uid, part, at, time_ms, rng.randrange(9)), "payloads"
    else:
        row = message_row(uid, part, rng.randrange(5), time_ms, rng.randrange(9))
        table = "messages"
    block = header(flags, at)
    return table, row, block, store.judge(table, row, block)
