"""The contract of every store; the test class of each engine inherits it and makes the stores."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest

from tms.errors import Closed, Conflict, Invalid, NotFound, TooLarge
from tms.model.topic import Durability
from tms.store.base import KEY_BYTES_MAX, NAME_BYTES_MAX, Map, Store, is_last, pages

WRITTEN, SYNCED, NONE = Durability.WRITTEN, Durability.SYNCED, Durability.NONE
ALL = 1 << 40  # more bytes than any test writes


def rows_of(one: Map) -> list[tuple[bytes, bytes]]:
    return one.scan(None, None, ALL)


class StoreContract:
    """The promises of `tms.store.base`, one test each."""

    random_operations = 1_500  # fewer if each of them goes to another process

    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        """Open the store, and after `close` open it again with its contents."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, reopen: Callable[[], Store]) -> Iterator[Store]:
        made = reopen()
        yield made
        made.close()

    @pytest.fixture
    def one(self, store: Store) -> Map:
        return store.open("a/map", create=True)

    # Maps by name

    def test_a_new_map_is_empty(self, one: Map) -> None:
        assert rows_of(one) == []
        assert one.get(b"k") is None

    def test_a_map_that_is_not_there_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.open("missing", create=False)
        assert store.names("") == []

    def test_creating_a_map_twice_is_a_conflict(self, store: Store, one: Map) -> None:
        one.write([(b"k", b"v")], WRITTEN)
        with pytest.raises(Conflict):
            store.open("a/map", create=True)
        assert one.get(b"k") == b"v"

    def test_opening_a_map_again_shares_it(self, store: Store, one: Map) -> None:
        other = store.open("a/map", create=False)
        one.write([(b"k", b"v")], WRITTEN)
        assert other.get(b"k") == b"v"

    def test_maps_do_not_see_each_other(self, store: Store) -> None:
        first, second = store.open("a", create=True), store.open("a/b", create=True)
        first.write([(b"k", b"1")], WRITTEN)
        second.write([(b"k", b"2")], WRITTEN)
        assert (first.get(b"k"), second.get(b"k")) == (b"1", b"2")
        store.drop("a")
        assert second.get(b"k") == b"2"

    def test_names_are_sorted_and_begin_with_the_prefix(self, store: Store) -> None:
        for name in ("t/b", "t/a", "t-a", "t/a.b/0", "u"):
            store.open(name, create=True)
        assert store.names("") == ["t-a", "t/a", "t/a.b/0", "t/b", "u"]
        assert store.names("t/a") == ["t/a", "t/a.b/0"]
        assert store.names("x") == []

    @pytest.mark.parametrize(
        "name", ["", "/", "a/", "/a", "a//b", "A", "a b", ".", "..", "a/..", "a+b", "ä", "a\n"]
    )
    def test_a_bad_name_is_refused(self, store: Store, name: str) -> None:
        for call in (lambda: store.open(name, create=True), lambda: store.drop(name)):
            with pytest.raises(Invalid):
                call()

    def test_the_longest_name_works_and_a_longer_one_is_refused(self, store: Store) -> None:
        longest = "n" * NAME_BYTES_MAX
        store.open(longest, create=True)
        assert store.names("n") == [longest]
        with pytest.raises(Invalid):
            store.open(longest + "n", create=True)

    def test_a_dropped_map_is_gone_and_its_name_free(self, store: Store, one: Map) -> None:
        one.write([(b"k", b"v")], SYNCED)
        store.drop("a/map")
        assert store.names("") == []
        for call in (
            lambda: one.get(b"k"),
            lambda: one.scan(None, None, 1),
            lambda: one.write([(b"k", b"v")], WRITTEN),
            lambda: store.open("a/map", create=False),
        ):
            with pytest.raises(NotFound):
                call()
        assert rows_of(store.open("a/map", create=True)) == []

    def test_dropping_a_missing_map_does_nothing(self, store: Store) -> None:
        store.drop("missing")

    def test_a_closed_store_refuses_everything_and_closes_twice(
        self, store: Store, one: Map
    ) -> None:
        store.close()
        store.close()
        for call in (
            lambda: one.get(b"k"),
            lambda: one.write([(b"k", b"v")], WRITTEN),
            lambda: store.open("a/map", create=False),
            lambda: store.names(""),
            lambda: store.drop("a/map"),
        ):
            with pytest.raises(Closed):
                call()

    # Writing and reading

    @pytest.mark.parametrize("durability", [NONE, WRITTEN, SYNCED])
    def test_a_write_is_visible_when_it_returns(self, one: Map, durability: Durability) -> None:
        one.write([(b"k", b"v"), (b"l", b"w")], durability)
        assert rows_of(one) == [(b"k", b"v"), (b"l", b"w")]
        one.write([(b"k", b"x")], durability)
        assert one.get(b"k") == b"x"

    def test_writing_no_rows_does_nothing(self, one: Map) -> None:
        one.write([], SYNCED)
        assert rows_of(one) == []

    def test_the_last_of_equal_keys_in_a_write_wins(self, one: Map) -> None:
        one.write([(b"k", b"1"), (b"k", b"2")], WRITTEN)
        assert rows_of(one) == [(b"k", b"2")]

    @pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
    def test_any_buffer_can_be_written_and_reused(
        self, one: Map, make: Callable[..., bytes]
    ) -> None:
        source = bytearray(b"first")
        one.write([(b"k", make(source))], WRITTEN)
        one.write([(b"l", make(source)), (b"m", make(source))], WRITTEN)
        source[:] = b"other"
        assert [one.get(key) for key in (b"k", b"l", b"m")] == [b"first"] * 3
        assert all(type(value) is bytes for _, value in rows_of(one))

    @pytest.mark.parametrize("durability", [WRITTEN, SYNCED])
    def test_overwriting_replaces_stored_rows(self, one: Map, durability: Durability) -> None:
        one.write([(b"k", b"v"), (b"l", b"w")], durability)
        one.overwrite([(b"k", b"x")], durability)
        assert rows_of(one) == [(b"k", b"x"), (b"l", b"w")]
        assert one.get(b"k") == b"x"

    def test_an_empty_value_is_not_a_missing_one(self, one: Map) -> None:
        one.write([(b"k", b"")], WRITTEN)
        assert one.get(b"k") == b""
        assert one.get(b"l") is None

    def test_keys_are_ordered_as_unsigned_bytes(self, one: Map) -> None:
        keys = [b"\xff", b"\x00", b"\x7f", b"\x80", b"a", b"ab", b"\x00\x00", b"\xff\xff", b"B"]
        one.write([(key, key) for key in keys], WRITTEN)
        assert [key for key, _ in rows_of(one)] == sorted(keys)
        backward = one.scan(None, None, ALL, reverse=True)
        assert [key for key, _ in backward] == sorted(keys, reverse=True)

    def test_keys_and_values_have_bounds(self, one: Map) -> None:
        one.write([(b"k" * KEY_BYTES_MAX, b"v")], WRITTEN)
        for key in (b"", b"k" * (KEY_BYTES_MAX + 1)):
            for call in (
                lambda key=key: one.write([(b"good", b"v"), (key, b"v")], WRITTEN),
                lambda key=key: one.delete([key]),
                lambda key=key: one.compare_and_set(key, None, b"v"),
            ):
                with pytest.raises(Invalid):
                    call()
        with pytest.raises(TooLarge):
            one.write([(b"good", b"v"), (b"k", bytes(one.value_bytes_max + 1))], WRITTEN)
        assert one.get(b"good") is None, "a refused write left a row"

    def test_the_largest_value_comes_back_whole(self, one: Map) -> None:
        value = Random(1).randbytes(1 << 20) * (one.value_bytes_max >> 20)
        one.write([(b"k", value)], WRITTEN)
        assert one.get(b"k") == value

    def test_deleting_removes_keys_and_ignores_missing_ones(self, one: Map) -> None:
        one.write([(bytes([i]), b"v") for i in range(1, 9)], WRITTEN)
        one.delete(bytes([i]) for i in (2, 4, 200))
        one.delete([])
        assert [key[0] for key, _ in rows_of(one)] == [1, 3, 5, 6, 7, 8]

    def test_reclaiming_changes_no_row_and_the_map_goes_on(self, one: Map) -> None:
        random = Random(3)
        rows = {b"%03d" % n: random.randbytes(random.choice([10, 6_000])) for n in range(1, 60)}
        one.write([*rows.items()], WRITTEN)
        for round in range(3):
            gone = [key for key in rows if key[-1] % 4 == round]
            one.delete(gone)
            for key in gone:
                del rows[key]
            fresh = {key: random.randbytes(5_000) for key in rows if key[-1] % 3 == 0}
            one.overwrite([*fresh.items()], SYNCED)
            rows.update(fresh)
            one.reclaim()
            assert rows_of(one) == sorted(rows.items())
            rows[b"x%d" % round] = b"later" * 2_000
            one.write([(b"x%d" % round, b"later" * 2_000)], WRITTEN)
            assert rows_of(one) == sorted(rows.items())

    def test_readers_see_the_same_rows_while_space_is_reclaimed(self, one: Map) -> None:
        rows = [(b"%03d" % n, Random(n).randbytes(6_000)) for n in range(40)]
        one.write(rows, WRITTEN)

        def reclaim() -> None:
            for _ in range(5):
                one.reclaim()

        def read() -> None:
            for _ in range(60):
                assert rows_of(one) == rows
                assert one.get(b"007") == rows[7][1]

        run_together([reclaim, read, read])

    # Ranges

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize(
        ("start", "stop", "expected"),
        [
            (None, None, [1, 3, 5, 7]),
            (b"\x03", None, [3, 5, 7]),
            (None, b"\x05", [1, 3]),
            (b"\x03", b"\x05", [3]),
            (b"\x02", b"\x06", [3, 5]),
            (b"\x00", b"\xff", [1, 3, 5, 7]),
            (b"\x07", b"\x08", [7]),
            (b"\x08", None, []),
            (None, b"\x01", []),
            (None, b"\x00", []),
            (b"\x03", b"\x03", []),
            (b"\x05", b"\x03", []),
            (b"\x03\x00", b"\x07", [5]),
        ],
    )
    def test_ranges_are_half_open_in_both_directions(
        self, one: Map, start: bytes, stop: bytes, expected: list[int], reverse: bool
    ) -> None:
        one.write([(bytes([i]), b"v") for i in (1, 3, 5, 7)], WRITTEN)
        found = [key[0] for key, _ in one.scan(start, stop, ALL, reverse)]
        assert found == (expected[::-1] if reverse else expected)

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize(("bytes_max", "count"), [(0, 1), (1, 1), (11, 1), (12, 2), (30, 3)])
    def test_a_scan_ends_once_its_bytes_are_reached_but_not_before_one_row(
        self, one: Map, bytes_max: int, count: int, reverse: bool
    ) -> None:
        one.write([(bytes([i]), b"0123456789") for i in range(9)], WRITTEN)
        found = one.scan(None, None, bytes_max, reverse)
        assert [key[0] for key, _ in found] == ([8, 7, 6] if reverse else [0, 1, 2])[:count]

    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_scan_that_is_not_full_was_the_last_of_its_range(
        self, one: Map, reverse: bool
    ) -> None:
        """Values are small, large and empty: an engine may store them apart."""
        random = Random(3)
        rows = [(bytes([i]), bytes(random.choice((0, 1, 9, 3_000, 70_000)))) for i in range(1, 41)]
        one.write(rows, WRITTEN)
        total = sum(len(key) + len(value) for key, value in rows)
        for bytes_max in (1, 30, 3_001, 70_002, 200_000, total - 1, total, total + 1):
            found = one.scan(None, None, bytes_max, reverse)
            assert is_last(found, bytes_max) is (bytes_max > total)
            assert len(found) == len(rows) or not is_last(found, bytes_max)
            if not reverse:
                walked = [row for page in pages(one, None, None, bytes_max) for row in page]
                assert walked == rows

    def test_a_map_agrees_with_a_dictionary_over_random_operations(
        self, reopen: Callable[[], Store]
    ) -> None:
        random, model = Random(7), dict[bytes, bytes]()
        store = reopen()
        one = store.open("m", create=True)
        for _ in range(self.random_operations):
            key = random.randbytes(random.randint(1, 2))
            choice = random.random()
            if choice < 0.5:
                rows = [
                    (random.randbytes(2), random.randbytes(9)) for _ in range(random.randint(1, 4))
                ]
                one.write(rows, WRITTEN)
                model.update(rows)
            elif choice < 0.6:
                keys = [key, *random.sample(sorted(model), min(2, len(model)))]
                one.delete(keys)
                for each in keys:
                    model.pop(each, None)
            elif choice < 0.7:
                assert one.compare_and_set(key, model.get(key), b"new")
                model[key] = b"new"
            else:
                start, stop = sorted((key, random.randbytes(1)))
                reverse = random.random() < 0.5
                expected = sorted(
                    (r for r in model.items() if start <= r[0] < stop), reverse=reverse
                )
                assert one.scan(start, stop, ALL, reverse) == expected
        assert rows_of(one) == sorted(model.items())
        store.close()

    # Compare and set

    def test_compare_and_set_sets_only_what_is_expected(self, one: Map) -> None:
        assert not one.compare_and_set(b"k", b"v", b"w")
        assert one.compare_and_set(b"k", None, b"v")
        assert not one.compare_and_set(b"k", None, b"w")
        assert not one.compare_and_set(b"k", b"", b"w")
        assert one.get(b"k") == b"v"
        assert one.compare_and_set(b"k", b"v", b"")
        assert one.get(b"k") == b""
        assert one.compare_and_set(b"k", b"", None)
        assert one.get(b"k") is None
        assert one.compare_and_set(b"k", None, None)

    def test_of_racing_compare_and_sets_one_wins(self, one: Map) -> None:
        wins: list[int] = []

        def race(number: int) -> None:
            for step in range(20):
                if one.compare_and_set(b"%d" % step, None, b"%d" % number):
                    wins.append(step)

        run_together([partial(race, number) for number in range(4)])
        assert sorted(wins) == list(range(20))

    def test_counting_by_compare_and_set_loses_no_step(self, one: Map) -> None:
        def count() -> None:
            for _ in range(15):
                while True:
                    now = one.get(b"n")
                    if one.compare_and_set(b"n", now, b"%d" % (int(now or 0) + 1)):
                        break

        run_together([count] * 4)
        assert one.get(b"n") == b"60"

    # Threads, sizes, health

    def test_readers_and_writers_share_a_map(self, one: Map) -> None:
        """Rows are read in order and whole, and a row that was seen stays."""

        def write(first: int) -> None:
            for i in range(first, first + 60):
                one.write([(b"a%05d" % i, b"a%d" % i), (b"b%05d" % i, b"b%d" % i)], WRITTEN)

        def read() -> None:
            before: list[tuple[bytes, bytes]] = []
            for _ in range(40):
                rows = rows_of(one)
                assert all(value == b"%c%d" % (key[0], int(key[1:])) for key, value in rows)
                assert rows == sorted(rows)
                assert set(before) <= set(rows)
                before = rows

        run_together([lambda: write(0), lambda: write(1000), read, read])
        assert len(rows_of(one)) == 240

    def test_maps_can_come_and_go_in_many_threads(self, store: Store) -> None:
        def churn(number: int) -> None:
            for step in range(5):
                name = f"churn/{number}.{step}"
                store.open(name, create=True).write([(b"k", name.encode())], WRITTEN)
                assert store.open(name, create=False).get(b"k") == name.encode()
                if step % 2:
                    store.drop(name)

        run_together([partial(churn, number) for number in range(4)])
        assert len(store.names("churn/")) == 12

    def test_stored_bytes_grow_with_what_is_stored(self, one: Map) -> None:
        before = one.stored_bytes()
        one.write([(b"%04d" % i, Random(i).randbytes(1_000)) for i in range(100)], WRITTEN)
        assert 90_000 <= one.stored_bytes() - before <= 400_000

    def test_a_store_that_works_is_healthy_and_needs_no_recovery(
        self, store: Store, one: Map
    ) -> None:
        one.recover()
        assert store.healthy() is None


class WholeWritesContract:
    """The contract of stores that belong to one process: no reader sees a part of a write."""

    def test_no_reader_sees_a_part_of_a_write(self, one: Map) -> None:
        """Each write stores two rows; no reader ever sees one without the other."""
        torn: list[object] = []

        def write(first: int) -> None:
            for i in range(first, first + 100):
                one.write([(b"a%05d" % i, b"v"), (b"b%05d" % i, b"v")], WRITTEN)

        def read() -> None:
            for _ in range(60):
                rows = rows_of(one)
                left = {key[1:] for key, _ in rows if key[:1] == b"a"}
                right = {key[1:] for key, _ in rows if key[:1] == b"b"}
                if left != right:
                    torn.append(left ^ right)

        run_together([lambda: write(0), lambda: write(1000), read, read])
        assert not torn
        assert len(rows_of(one)) == 400


class DurableStoreContract(StoreContract):
    """The contract of stores whose data outlives them."""

    def test_everything_is_there_after_reopening(self, reopen: Callable[[], Store]) -> None:
        store = reopen()
        rows = [(b"%06d" % i, Random(i).randbytes(500)) for i in range(2_000)]
        one = store.open("a/map", create=True)
        one.write(rows, WRITTEN)
        one.delete([rows[0][0]])
        store.open("empty", create=True)
        store.open("gone", create=True)
        store.drop("gone")
        store.close()
        store = reopen()
        assert store.names("") == ["a/map", "empty"]
        assert rows_of(store.open("a/map", create=False)) == rows[1:]
        assert rows_of(store.open("empty", create=False)) == []
        store.close()


def run_together(calls: list[Callable[[], object]]) -> None:
    """Run the calls in a thread each, and raise the first error of any."""
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a call hangs"
    if errors:
        raise errors[0]
