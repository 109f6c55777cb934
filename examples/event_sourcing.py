"""Event sourcing: an account whose state is what its events come to.

    python examples/event_sourcing.py

Events are never changed; a view folds them into balances and follows the log. Whoever decides on a
balance publishes the event with what it expects: if another event of the account came meanwhile,
the event is refused, and the decision is made again on the new balance. So no account is ever
overdrawn, with any number of deciders and no lock.
"""

import json
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import tms
from tms.client.view import View
from tms.errors import WrongLastId

TOPIC = "accounts"


class Account(NamedTuple):
    """What the events of an account come to."""

    cents: int = 0
    events: int = 0


class Refused(Exception):
    """The account has not enough."""


def applied(before: Account | None, message: tms.Message) -> Account:
    """The account after one more event."""
    event = json.loads(message.value or b"{}")
    cents, events = before or Account()
    sign = -1 if event["type"] == "withdrawn" else 1
    return Account(cents + sign * event["cents"], events + 1)


def deposit(bus: tms.Bus, account: str, cents: int) -> None:
    """No decision, so nothing is expected."""
    bus.publish(TOPIC, event("deposited", cents), key=account.encode())


def withdraw(bus: tms.Bus, view: View[Account], account: str, cents: int) -> int:
    """Withdraw if the account has enough; how often it was decided. Raises `Refused`."""
    key, decided = account.encode(), 0
    while True:
        decided += 1
        now, expect = view.current(key)
        if (now or Account()).cents < cents:
            raise Refused(f"{account} has less than {cents}")
        try:
            bus.publish(TOPIC, event("withdrawn", cents), key=key, expect=expect)
        except WrongLastId:
            view.refresh()  # somebody else was faster: decide again
        else:
            return decided


def event(type: str, cents: int) -> bytes:
    """An event as it is stored."""
    return json.dumps({"type": type, "cents": cents}).encode()


def work(bus: tms.Bus, done: list[int]) -> None:
    """Withdraw until there is not enough."""
    with bus.view(TOPIC, apply=applied) as view:
        while True:
            try:
                done.append(withdraw(bus, view, "ada", 10))
            except Refused:
                view.refresh()
                if view[b"ada"].cents < 10:
                    return


def main() -> None:
    with tempfile.TemporaryDirectory() as name, tms.open(Path(name) / "data") as bus:
        bus.create_topic(TOPIC, partitions=4, durability="written")
        deposit(bus, "ada", 1_005)
        deposit(bus, "bob", 500)
        done: list[int] = []
        workers = [threading.Thread(target=work, args=(bus, done)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        with bus.view(TOPIC, apply=applied) as view:
            for key, account in sorted(view.items()):
                print(f"{key.decode()}: {account.cents} cents after {account.events} messages")
        print(f"{len(done)} withdrawals, {sum(done) - len(done)} of them decided again")
        events = bus.consumer(TOPIC, stop_at_end=True)
        first = next(one for one in events if b"withdrawn" in (one.value or b""))
        then = bus.view(TOPIC, apply=applied, at=first.id)
        print(f"ada had {then[b'ada'].cents} cents at {first.timestamp:%H:%M:%S}")


if __name__ == "__main__":
    main()
