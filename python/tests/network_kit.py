"""Two machines of a test: network namespaces with a cable between them, for a service and for
clients on another machine.

    with two_machines() as network:
        with Service(path, "--host", network.host, before_exec=network.enter_service) as service:
            network.from_elsewhere(lambda: Client(service.address))

    service 10.9.8.1 ─── veth ─── 10.9.8.2 elsewhere         each with a loopback of its own

* Nothing of this machine's network changes. The namespaces exist as long as this process has their
  descriptors, so they are gone however it ends.
* If the kernel lets this user make none, the test uses an address of this machine that is not
  loopback, a warning says so, and `isolated` is False. Without such an address the test fails.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

HOST, ELSEWHERE, MASK = "10.9.8.1", "10.9.8.2", "255.255.255.0"

# Of linux/sched.h, linux/netlink.h, linux/rtnetlink.h, linux/if_link.h, linux/veth.h, net/if.h
_CLONE_NEWNET = 0x4000_0000
_NETLINK_ROUTE, _RTM_NEWLINK = 0, 16
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_SIOCGIFADDR, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8915, 0x8916, 0x891C
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 0x1

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Network:
    """The address at which a service is reached from outside, and the means to be an outside
    client."""

    host: str
    isolated: bool
    enter_service: Callable[[], None]  # in the process of the service, before it starts
    _elsewhere: ThreadPoolExecutor = field(repr=False)

    def from_elsewhere(self, ask: Callable[[], T]) -> T:
        """The result of a function that opens its connections on the other machine."""
        return self._elsewhere.submit(ask).result()


@contextmanager
def two_machines() -> Iterator[Network]:
    """Two namespaces, or the closest substitute here."""
    with ExitStack() as stack:
        try:
            machines = _namespaces(stack)
        except PermissionError as error:
            host = _address_of_this_machine()
            warnings.warn(
                f"No network namespace can be made here ({error}; it takes root, or CAP_SYS_ADMIN "
                f"and CAP_NET_ADMIN): the service listens on {host} of this machine instead.",
                stacklevel=2,
            )
            pool = stack.enter_context(ThreadPoolExecutor(1))
            yield Network(host, False, lambda: None, pool)
        else:
            service, elsewhere = machines
            pool = ThreadPoolExecutor(1, initializer=_enter, initargs=(elsewhere,))
            yield Network(HOST, True, lambda: _enter(service), stack.enter_context(pool))


def _namespaces(stack: ExitStack) -> tuple[int, int]:
    """Descriptors of two namespaces with a cable between them. A thread belongs to the namespace
    that it entered last, so a thread of its own makes them."""

    def make() -> tuple[int, int]:
        service, elsewhere = _new(stack), _new(stack)
        _lay_cable("elsewhere", service, "service")
        _bring_up("lo", "127.0.0.1", "255.0.0.0")
        _bring_up("elsewhere", ELSEWHERE, MASK)
        _enter(service)
        _bring_up("lo", "127.0.0.1", "255.0.0.0")
        _bring_up("service", HOST, MASK)
        return service, elsewhere

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


def _new(stack: ExitStack) -> int:
    """Make a new namespace, which this thread is in from now on."""
    _call(_libc.unshare(_CLONE_NEWNET), "unshare")
    fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    stack.callback(os.close, fd)
    return fd


def _enter(namespace: int) -> None:
    """Move this thread into a namespace."""
    _call(_libc.setns(namespace, _CLONE_NEWNET), "setns")


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _lay_cable(here: str, there: int, name_there: str) -> None:
    """Make a veth whose one end, `here`, is in this thread's namespace."""
    info = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)
    peer = info + _attribute(_IFLA_IFNAME, name_there.encode() + b"\0")
    peer += _attribute(_IFLA_NET_NS_FD, struct.pack("=I", there))
    kind = _attribute(_INFO_KIND, b"veth")
    pair = _attribute(_INFO_DATA, _attribute(_VETH_PEER, peer))
    body = info + _attribute(_IFLA_IFNAME, here.encode() + b"\0")
    body += _attribute(_IFLA_LINKINFO, kind + pair)
    flags = _REQUEST | _ACK | _EXCL | _CREATE
    head = struct.pack("=IHHII", 16 + len(body), _RTM_NEWLINK, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as netlink:
        netlink.bind((0, 0))
        netlink.send(head + body)
        answer = netlink.recv(4096)
    number = -struct.unpack_from("=i", answer, 16)[0]
    if number:
        what = f"a veth cannot be made: {os.strerror(number)}"
        # A kernel without veth counts like one that refuses.
        raise OSError(errno.EPERM if number == errno.EOPNOTSUPP else number, what)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _bring_up(interface: str, address: str, mask: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, mask)):
            told = struct.pack("=16sHH4s8x", interface.encode(), 2, 0, socket.inet_aton(text))
            fcntl.ioctl(control, request, told)
        asked = struct.pack("=16sH14x", interface.encode(), 0)
        [flags] = struct.unpack_from("=H", fcntl.ioctl(control, _SIOCGIFFLAGS, asked), 16)
        fcntl.ioctl(
            control, _SIOCSIFFLAGS, struct.pack("=16sH14x", interface.encode(), flags | _UP)
        )


def _address_of_this_machine() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(control, _SIOCGIFADDR, struct.pack("=16s16x", name.encode()))
            except OSError:  # the machine has none
                continue
            address = socket.inet_ntoa(found[20:24])
            if not address.startswith("127."):
                return address
    raise AssertionError(
        "No network namespace can be made here, and this machine has no address but loopback: run "
        "this test as root, or give the machine one."
    )
