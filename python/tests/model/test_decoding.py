"""Decoders are made by one thread at a time: msgspec may end the process otherwise."""

import os
import subprocess
import sys
import textwrap
import threading
from typing import Annotated, Any

import msgspec
import pytest

from tms.runtime import decoding
from tms.runtime.decoding import convert, from_json, from_msgpack, json_decoder
from tms.serializers import Json, MessagePack

MANY_THREADS = textwrap.dedent(
    """
    import sys, threading
    import msgspec
    from tms.runtime.decoding import convert, from_json, from_msgpack

    sys.setswitchinterval(1e-6)
    FIELDS = [(f"f{n}", list[int] if n % 2 else int | None) for n in range(40)]
    VALUE = {name: [1] if kind == list[int] else 1 for name, kind in FIELDS}
    VALUE = {"inner": VALUE, **VALUE}
    JSON, MSGPACK = msgspec.json.encode(VALUE), msgspec.msgpack.encode(VALUE)

    def decode(kind, barrier, how):
        barrier.wait()
        made = (from_json(JSON, kind), from_msgpack(MSGPACK, kind), convert(VALUE, kind))[how]
        assert made.inner.f1 == [1]

    for number in range(200):
        inner = msgspec.defstruct(f"Inner{number}", FIELDS)
        kind = msgspec.defstruct(f"Outer{number}", [("inner", inner), *FIELDS])
        barrier = threading.Barrier(6)
        threads = [threading.Thread(target=decode, args=(kind, barrier, n % 3)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """
)


class Point(msgspec.Struct):
    x: int


def test_threads_that_decode_a_class_for_the_first_time_do_not_end_the_process() -> None:
    command = [sys.executable, "-c", MANY_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_decoder_is_made_once() -> None:
    assert json_decoder(Point) is json_decoder(Point)


def test_values_are_decoded_and_checked() -> None:
    assert from_json(b'{"x": 1}', Point) == from_msgpack(b"\x81\xa1x\x01", Point) == Point(1)
    assert convert({"x": "1"}, Point, strict=False) == Point(1)
    with pytest.raises(msgspec.ValidationError):
        from_json(b'{"x": "1"}', Point)
    with pytest.raises(msgspec.ValidationError):
        convert({"x": "1"}, Point)


def test_a_type_that_cannot_be_a_key_is_decoded_too() -> None:
    kind: Any = Annotated[int, ["a note"]]
    with pytest.raises(TypeError, match="unhashable"):
        hash(kind)
    assert from_json(b"1", kind) == 1
    assert Json(kind).decode(b"1") == MessagePack(kind).decode(b"\x01") == 1


def test_a_process_is_not_forked_while_a_decoder_is_made() -> None:
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with decoding._lock:
            held.set()
            go_on.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    threading.Timer(0.2, go_on.set).start()
    child = os.fork()  # waits for the thread
    if child == 0:
        os._exit(0 if decoding._lock.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
