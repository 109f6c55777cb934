"""Event sourcing: an account whose state is the sum of its events.

    python examples/event_sourcing.py

Events are never changed; a view folds them into balances and follows the log. A client decides on a
balance and publishes the event with the message id it has read up to as `expect`. If another event
of the account came meanwhile, the event is refused, and the client decides again on the new
balance. So no account is ever overdrawn, with any number of clients and no lock.
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
    """The state of an account after its events."""

    cents: int = 0
    events: int = 0


class Refused(Exception):
    """The balance is too low."""


def applied(before: Account | None, message: tms.Message) -> Account:
    """The account after one more event."""
    event = json.loads(message.value or b"{}")
    cents, events = before or Account()
    sign = -1 if event["type"] == "withdrawn" else 1
    return Account(cents + sign * event["cents"], events + 1)


def deposit(bus: tms.Bus, account: str, cents: int) -> None:
    """Deposit without a precondition: a deposit depends on no balance."""
    bus.publish(TOPIC, event("deposited", cents), key=account.encode())


def withdraw(bus: tms.Bus, view: View[Account], account: str, cents: int) -> int:
    """Withdraw if the balance suffices; returns the number of decisions. Raises `Refused`."""
    key, decided = account.encode(), 0
    while True:
        decided += 1
        now, expect = view.current(key)
        if (now or Account()).cents < cents:
            raise Refused(f"{account} has less than {cents}")
        try:
            bus.publish(TOPIC, event("withdrawn", cents), key=key, expect=expect)
        except WrongLastId:
            view.refresh()  # another client was faster: decide again
        else:
            return decided


def event(type: str, cents: int) -> bytes:
    """An event in its stored form."""
    return json.dumps({"type": type, "cents": cents}).encode()


def work(bus: tms.Bus, done: list[int]) -> None:
    """Withdraw until the balance is too low."""
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
