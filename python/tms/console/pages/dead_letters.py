"""The dead letters of a queue: why they died, by cause and one by one; moving them back, mending or
discarding them.

    letters ─▶ plan: how many, and where to ─▶ form ─▶ redrive or discard, of those still open

* A letter is open until it is moved back or discarded. A form names letters by partition and id, so
  that one that is sent twice, or by two people, settles each of them once.
* A mended letter is published first and settled then: if the second fails, the page says so, and
  the letter is still open.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tms.api.bodies import FetchedBody, MessageOut, positions_text
from tms.api.queues import REDRIVE_MAX
from tms.console.pages.message import cells_of, found_message
from tms.console.pages.message_ranges import MessageRow, row_of
from tms.console.visit import (
    PROBLEM,
    Notice,
    PageAnswer,
    PageRoute,
    Redirect,
    Visit,
    WebPage,
    path_of,
)
from tms.errors import (
    Conflict,
    Forbidden,
    GroupNotFound,
    Invalid,
    NotFound,
    TMSError,
    TopicNotFound,
    Unauthenticated,
)
from tms.model.access import Access
from tms.model.dead_letters import LETTERS_MAX, LetterId, settled_in
from tms.model.message import Headers
from tms.model.position import Position
from tms.model.queue import (
    DEAD_CAUSE,
    DEAD_PREFIX,
    DeadOrigin,
    QueueInfo,
    dead_origin,
    redrive_group,
)
from tms.model.topic import TopicName
from tms.server.asking import AskedOperation

SHOWN = 100  # letters of a page
FETCHES_MAX = 8  # of a page
FETCH_BYTES = 256 << 10
PARTITIONS_MAX = 64  # of a page; their positions travel in an address
CAUSE_CHARS = 120  # by which letters are chosen; the filter travels in an address
REDRIVE = "redrive"
DISCARD = "discard"
_DONE = {REDRIVE: "moved back", DISCARD: "discarded"}


class LetterRow(NamedTuple):
    """An open dead letter. `at`: the address of its page; `original`: that of the message in the
    topic of the queue."""

    row: MessageRow
    origin: DeadOrigin
    at: str
    original: str

    @property
    def name(self) -> str:
        """Its partition and id."""
        return f"{self.row.partition}:{self.row.id}"


class OpenLetters(NamedTuple):
    """A page of open dead letters. `next`: positions from which the next page begins, empty on the
    last one."""

    rows: Sequence[LetterRow]
    next: str


class SettledRecord(NamedTuple):
    """How far the dead letters of a queue are settled: the first position that is not, and the
    offsets of settled ones behind it, by partition."""

    positions: Mapping[int, Position]
    settled: Mapping[int, frozenset[int]]


async def show_letters(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """The open dead letters of a queue, and how many there are of each cause on this page."""
    name = TopicName.of(namespace, topic)
    info: QueueInfo = await visit.ask("queues.describe", topic=name, group=group)
    letters = OpenLetters((), "")
    fault: TMSError | None = None
    try:
        letters = await open_letters(visit, info, visit.asked("cause"))
    except Unauthenticated:
        raise
    except TMSError as error:
        fault = error
    by_cause: dict[str, list[str]] = {}
    for one in letters.rows:
        by_cause.setdefault(one.origin.cause[:CAUSE_CHARS], []).append(one.name)
    resource = _resource(name, group)
    values = {
        "name": name,
        "group": group,
        "info": info,
        "letters": letters,
        "fault": fault,
        "causes": Counter({cause: len(names) for cause, names in by_cause.items()}).most_common(),
        "names": by_cause,
        "next": visit.address(after=letters.next) if letters.next else "",
        "first": visit.address(after=None) if visit.asked("after") else "",
        "at": path_of("queues", namespace, topic, group),
        "publish": path_of("publish", namespace, topic),
        "may_manage": visit.may(Access.MANAGE, resource),
        "may_publish": visit.may(Access.PUBLISH, f"topic:{namespace}:{topic}"),
        "resource": resource,
    }
    return WebPage("dead_letters.html", values)


async def open_letters(visit: Visit, info: QueueInfo, cause: str = "") -> OpenLetters:
    """Up to `SHOWN` open letters whose cause begins so, from the position of the visit (`after`)
    on; fewer if a bounded look finds no more. Raises the errors of a fetch."""
    record = await _record(visit, info)
    if not record.positions:
        return OpenLetters((), "")
    begin = visit.asked("after") or positions_text(record.positions)
    where = f"header.{DEAD_CAUSE} ^= {_quoted(cause)}" if cause else None
    rows: list[LetterRow] = []
    for _ in range(FETCHES_MAX):
        fetched: FetchedBody = await visit.ask(
            "fetch",
            name=info.dead_letter,
            start=begin,
            limit=SHOWN - len(rows),
            bytes_max=FETCH_BYTES,
            where=where,
        )
        begin = fetched.next
        for message in fetched.messages:
            if message.offset not in record.settled.get(message.partition, ()):
                rows += _letter_row(info, message)
        if all(fetched.reached[one] >= end for one, end in fetched.ends.items()):
            return OpenLetters(rows, "")
        if len(rows) >= SHOWN:
            break
    return OpenLetters(rows, begin)


async def _record(visit: Visit, info: QueueInfo) -> SettledRecord:
    """The record of a queue; without positions if it has no dead letters."""
    try:
        topic = await visit.ask("topics.describe_topic", name=info.dead_letter)
    except TopicNotFound:  # it is made for the first one
        return SettledRecord({}, {})
    partitions = range(min(topic.settings.partitions, PARTITIONS_MAX))
    positions = dict.fromkeys(partitions, Position.earliest())
    settled: dict[int, frozenset[int]] = {}
    group = redrive_group(info.group, info.topic)
    try:
        found = await visit.ask("groups.describe", topic=info.dead_letter, group=group)
    except GroupNotFound:  # none is settled
        return SettledRecord(positions, settled)
    for part in found.partitions[: len(partitions)]:
        settled[part.partition] = settled_in(part.metadata)
        if part.position is not None:
            positions[part.partition] = Position.parse(part.position)
    return SettledRecord(positions, settled)


def _letter_row(info: QueueInfo, message: MessageOut) -> list[LetterRow]:
    row = row_of(message)
    origin = dead_origin(row.headers, info.topic, info.group)
    if origin is None:  # of another queue, with which it shares the topic
        return []
    own = row._replace(headers=own_headers(row.headers))
    at = path_of("messages", *info.dead_letter, row.partition, row.id)
    original = path_of("messages", *info.topic, origin.partition, origin.id)
    return [LetterRow(own, origin, at, original)]


def own_headers(headers: Headers) -> Headers:
    """The headers that the message had before it died."""
    return {name: cell for name, cell in headers.items() if not name.startswith(DEAD_PREFIX)}


def _quoted(cause: str) -> str:
    return json.dumps(cause[:CAUSE_CHARS], ensure_ascii=False)


# --- moving back and discarding ------------------------------------------------------------------


async def plan(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """The page that says what will happen to the chosen letters, or to the oldest of all."""
    name = TopicName.of(namespace, topic)
    info: QueueInfo = await visit.ask("queues.describe", topic=name, group=group)
    do, letters = _chosen(visit)
    limit = 0 if letters else min(info.dead, REDRIVE_MAX)
    if not letters and visit.given("all") != "yes":
        raise Invalid("No dead letter was chosen. Mark some, or take all of them.")
    count = len(letters) or limit
    words = ["queue", do, str(name), group]
    words += map(str, letters) if letters else ["--limit", str(limit)]
    values = {
        "name": name,
        "group": group,
        "info": info,
        "do": do,
        "count": count,
        "all": not letters,
        "letters": " ".join(map(str, letters)),
        "limit": limit,
        "at": path_of("queues", namespace, topic, group),
        "same": visit.same_as(words, _question(visit, name, group, do, letters, max(1, limit))),
    }
    return WebPage("dead_letters_plan.html", values)


async def settle(visit: Visit, namespace: str, topic: str, group: str) -> PageAnswer:
    """Move the letters of a plan back, or discard them once the name was typed."""
    name = TopicName.of(namespace, topic)
    do, letters = _chosen(visit)
    limit = visit.given("limit", "0")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 9):
        raise Invalid(f"limit is a whole number, got {limit!r:.40}.", field="limit")
    if do == DISCARD:
        visit.require_typed(group)
    asked = len(letters) or int(limit)
    if not asked:
        raise Invalid("No dead letter was chosen.")
    done = await visit.put(_question(visit, name, group, do, letters, max(1, int(limit))))
    text = f"{done:,} dead letters were {_DONE[do]}."
    if done < asked:
        text = (
            f"{done:,} of {asked:,} dead letters were {_DONE[do]}; the others were settled by "
            "someone else meanwhile, or are gone. Nothing was done with them."
        )
    return Redirect(path_of("queues", namespace, topic, group, "dead"), Notice(text))


def _chosen(visit: Visit) -> tuple[str, list[LetterId]]:
    """The action of a form, and the letters that it names. Raises `Invalid`."""
    do = visit.given("do")
    if do not in _DONE:
        raise Invalid(f"Dead letters are moved back or discarded, got {do!r:.40}.", field="do")
    names = [*visit.given("letters").split(), *visit.fields.get("letter", ())]
    if len(names) > LETTERS_MAX:
        raise Invalid(f"One form settles up to {LETTERS_MAX} dead letters.", field="letters")
    return do, list(dict.fromkeys(map(LetterId.parse, names)))


def _question(
    visit: Visit, name: TopicName, group: str, do: str, letters: Sequence[LetterId], limit: int
) -> AskedOperation:
    at = {"topic": name, "group": group}
    chosen: dict[str, Any] = {"letters": letters} if letters else {"limit": limit}
    return visit.question(f"queues.{do}", at | chosen)


# --- mending -------------------------------------------------------------------------------------


class MendedLetter(NamedTuple):
    """A dead letter that is published again, edited. `text`: GROUP/PARTITION:ID, as addresses and
    forms have it."""

    info: QueueInfo
    letter: LetterId
    text: str

    @classmethod
    async def of(cls, visit: Visit, topic: TopicName, text: str) -> "MendedLetter":
        """The letter of a queue on this topic that the text names. Raises `Invalid`,
        `QueueNotFound`."""
        group, _, name = text.rpartition("/")
        letter = LetterId.parse(name)
        info: QueueInfo = await visit.ask("queues.describe", topic=topic, group=group)
        return cls(info, letter, text)

    def origin(self, message: MessageOut) -> DeadOrigin:
        """The place at which it died. Raises `NotFound` for a message that is no dead letter of
        the queue."""
        found = dead_origin(cells_of(message)[2], self.info.topic, self.info.group)
        if found is None:
            raise NotFound(
                f"{self.letter} is no dead letter of the queue {self.info.group} of "
                f"{self.info.topic}."
            )
        return found

    async def message(self, visit: Visit) -> MessageOut:
        """The letter. Raises `NotFound` if it is gone."""
        partition, id = self.letter
        return await found_message(visit, self.info.dead_letter, str(partition), str(id))

    async def require_open(self, visit: Visit) -> None:
        """Raise `Conflict` if the letter has been settled, `Forbidden` if the visitor may not."""
        message = await self.message(visit)
        self.origin(message)
        resource = _resource(self.info.topic, self.info.group)
        if not visit.may(Access.MANAGE, resource):
            raise Forbidden(
                f"Nothing was published: settling the dead letter needs manage on {resource}."
            )
        record = await _record(visit, self.info)
        at = record.positions.get(self.letter.partition, Position.earliest())
        starts = await visit.ask("topics.offsets", name=self.info.dead_letter, at=at)
        is_behind = message.offset < starts.get(self.letter.partition, 0)
        if is_behind or message.offset in record.settled.get(self.letter.partition, ()):
            raise Conflict(
                "Nothing was published: someone else has moved this dead letter back, mended or "
                "discarded it meanwhile."
            )

    async def settle(self, visit: Visit) -> Notice:
        """Settle the letter, whose mended message was published just now; says how that went."""
        at = {"topic": self.info.topic, "group": self.info.group, "letters": [self.letter]}
        try:
            done = await visit.ask("queues.discard", **at)
        except Unauthenticated:
            raise
        except TMSError as error:
            return Notice(
                "The mended message was published, but its dead letter is still open: "
                f"{error.message} Discard it, so that nobody moves it back.",
                PROBLEM,
            )
        if not done:
            return Notice(
                "The mended message was published. Someone else settled its dead letter at the "
                f"same time: look whether {self.info.topic} has the message twice.",
                PROBLEM,
            )
        return Notice(
            f"The mended message was published to {self.info.topic}, and its dead letter is "
            "settled."
        )


def _resource(name: TopicName, group: str) -> str:
    return f"queue:{name.namespace}:{name.topic}/{group}"


_DEAD = "/console/queues/{namespace}/{topic}/{group}/dead"
ROUTES = (
    PageRoute("GET", _DEAD, show_letters),
    PageRoute("POST", f"{_DEAD}/plan", plan),
    PageRoute("POST", f"{_DEAD}/settle", settle),
)
