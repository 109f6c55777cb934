"""A service on an HBase of its own, its clients, and everything that can be killed below them."""

import time

from integration.cluster import HBase
from integration.install import install
from tests.faults.clients import Clients, free_port
from tests.faults.service import Service

CALL_S = 5


class Stack:
    """A service on an HBase of its own, and its clients."""

    def __init__(self, hbase: HBase) -> None:
        self.hbase = hbase
        self.url = hbase.url("tms")
        install(self.url)
        self.port = free_port()
        self.service = self.serve()
        self.clients = Clients(f"http://127.0.0.1:{self.port}")

    def serve(self) -> Service:
        return Service(self.url, "--port", str(self.port), "--call-timeout-s", str(CALL_S))

    def kill_service(self) -> None:
        self.service.kill()
        self.clients.killed()
        self.service = self.serve()

    def kill_thrift(self) -> None:
        self.hbase.thrift.kill()
        self.clients.killed()
        self.hbase.start()

    def kill_servers(self) -> None:
        for process in self.hbase.servers():
            process.kill()
        self.clients.killed()
        self.hbase.start()

    def kill_all(self) -> None:
        self.service.kill()
        self.hbase.thrift.kill()
        for process in self.hbase.servers():
            process.kill()
        self.clients.killed()
        self.hbase.start()
        self.service = self.serve()

    def pause_thrift(self) -> None:
        """Pause the Thrift server for longer than any call may take: the calls that it holds take
        effect when it resumes."""
        self.hbase.thrift.pause()
        time.sleep(CALL_S + 1)
        self.hbase.thrift.resume()
