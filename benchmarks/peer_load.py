"""Load of a peer: so many durable writes kept in flight over so many connections to its leader, the next as soon as one
is answered.

    python benchmarks/peer_load.py etcd|zookeeper|rabbitmq|nats PORT [--payload 100] [--outstanding 64] …

Bare sockets and the least of each protocol, in one thread: it costs less than the peers' own libraries do, so the
processor of the machine is left to the servers. ``--setup`` first makes the queue, stream or nodes. Prints a JSON line
as `alpo bench append --json` does, with ``appends``: all that were answered, until the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

#: Nodes that ZooKeeper's writes go round: new nodes would make their parent grow.
NODES = 1_000
STREAM = "LOG"
RECEIVE_BYTES_MAX = 1 << 18
SETUP_WITHIN_S = 60.0


class Refused(Exception):
    """An answer that is none: the write may not be counted."""


class Connection(ABC):
    """One connection: writes have numbers from 1; `answers` yields the numbers of those that are durable."""

    def __init__(self, port: int, payload: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.payload = payload
        self.last = 0
        self.started_s: dict[int, float] = {}
        self._received = bytearray()
        self.open()

    def exactly(self, count: int) -> bytes:
        """Wait for so many bytes. Raises Refused at the connection's end."""
        while len(self._received) < count:
            if not (more := self.socket.recv(RECEIVE_BYTES_MAX)):
                raise Refused("the connection has ended")
            self._received += more
        found = bytes(self._received[:count])
        del self._received[:count]
        return found

    @abstractmethod
    def open(self) -> None:
        """Shake hands. Raises Refused."""

    def setup(self) -> None:
        """Make what the writes go to, if it is not there; most peers need nothing. Raises Refused."""
        return

    @abstractmethod
    def request(self, number: int) -> bytes:
        """Encode a write, or as much of it as may be sent now."""

    @abstractmethod
    def parse(self, received: bytearray) -> Iterator[int]:
        """Take what is complete out of ``received``; yields the numbers answered. Raises Refused."""

    def write(self, count: int, now_s: float) -> None:
        """Send so many writes, together."""
        out = bytearray()
        for _ in range(count):
            self.last += 1
            self.started_s[self.last] = now_s
            out += self.request(self.last)
        self.socket.sendall(out)

    def answers(self) -> Iterator[int]:
        """Receive once. Raises Refused."""
        if not (more := self.socket.recv(RECEIVE_BYTES_MAX)):
            raise Refused("the connection has ended")
        self._received += more
        yield from self.parse(self._received)


class Etcd(Connection):
    """Puts of new keys: gRPC, so HTTP/2, with headers that the server has in its table after the first request."""

    FIRST = (b"\x83\x86\x44\x14/etcdserverpb.KV/Put\x41\x09localhost\x5f\x10application/grpc\x40\x02te\x08trailers")
    LATER = b"\x83\x86\xc1\xc0\xbf\xbe"
    DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 4, 6, 7, 8

    def open(self) -> None:
        self._room, self._initial, self._frame_max = 65_535, 65_535, 16_384
        self._rooms: dict[int, int] = {}
        self._unsent: dict[int, bytes] = {}
        self._with_data: set[int] = set()
        self._key = f"/log/{os.getpid()}/{self.socket.getsockname()[1]}/".encode()
        window = self.frame(self.WINDOW, 0, 0, struct.pack(">I", (1 << 31) - 65_536))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(self.SETTINGS, 0, 0, b"") + window)
        self._settled = False
        while not self._settled:
            list(self.answers())

    @staticmethod
    def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
        """Encode an HTTP/2 frame."""
        return struct.pack(">I", len(body) << 8 | kind) + struct.pack(">BI", flags, stream) + body

    def request(self, number: int) -> bytes:
        stream, key = 2 * number - 1, self._key + b"%d" % number
        message = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(self.payload)) + self.payload
        self._unsent[stream] = b"\x00" + struct.pack(">I", len(message)) + message
        self._rooms[stream] = self._initial
        return self.frame(self.HEADERS, 4, stream, self.FIRST if number == 1 else self.LATER) + self.sendable(stream)

    def sendable(self, stream: int) -> bytes:
        """Encode as much of a message as the server has room for."""
        out, rest = b"", self._unsent[stream]
        while rest and (size := min(len(rest), self._room, self._rooms[stream], self._frame_max)) > 0:
            part, rest = rest[:size], rest[size:]
            self._room -= size
            self._rooms[stream] -= size
            out += self.frame(self.DATA, 0 if rest else 1, stream, part)
        if rest:
            self._unsent[stream] = rest
        else:
            del self._unsent[stream]
        return out

    def parse(self, received: bytearray) -> Iterator[int]:
        at, replies = 0, b""
        while len(received) >= at + 9 and len(received) >= at + 9 + (size := int.from_bytes(received[at : at + 3])):
            kind, flags, stream = received[at + 3], received[at + 4], int.from_bytes(received[at + 5 : at + 9])
            body = bytes(received[at + 9 : at + 9 + size])
            at += 9 + size
            if kind == self.DATA:
                self._with_data.add(stream)
            elif kind == self.HEADERS and flags & 1:  # Trailers: after a message they mean success.
                if stream not in self._with_data:
                    raise Refused("etcd refuses a Put")
                self._with_data.remove(stream)
                self._rooms.pop(stream, None)
                yield (stream + 1) // 2
            elif kind == self.GOAWAY:
                raise Refused(f"etcd ends the connection: {body[8:]!r}")
            else:
                replies += self.control(kind, flags, stream, body)
        del received[:at]
        if replies:
            self.socket.sendall(replies)

    def control(self, kind: int, flags: int, stream: int, body: bytes) -> bytes:
        """Take a frame that says how the connection is to be used; returns what is to be sent now."""
        if kind == self.PING and not flags & 1:
            return self.frame(self.PING, 1, 0, body)
        if kind == self.SETTINGS and not flags & 1:
            for key, value in struct.iter_unpack(">HI", body):
                if key == 4:
                    self._rooms = {open_: room + value - self._initial for open_, room in self._rooms.items()}
                    self._initial = value
                elif key == 5:
                    self._frame_max = value
            self._settled = True
            return self.frame(self.SETTINGS, 1, 0, b"") + b"".join(map(self.sendable, list(self._unsent)))
        if kind == self.WINDOW:
            more = int.from_bytes(body)
            if stream == 0:
                self._room += more
            elif stream in self._rooms:
                self._rooms[stream] += more
            return b"".join(map(self.sendable, list(self._unsent)))
        return b""


def varint(value: int) -> bytes:
    """Encode an integer as protobuf does."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


class ZooKeeper(Connection):
    """`setData` of a thousand nodes in turn."""

    EXISTS = -110

    def open(self) -> None:
        hello = struct.pack(">iqiq", 0, 0, 30_000, 0) + self.text(bytes(16)) + b"\x00"
        self.socket.sendall(self.text(hello))
        self.exactly(int.from_bytes(self.exactly(4)))

    def setup(self) -> None:
        acl = struct.pack(">ii", 1, 31) + self.text(b"world") + self.text(b"anyone") + struct.pack(">i", 0)
        for path in (b"/log", *map(self.node, range(NODES))):
            self.socket.sendall(self.text(struct.pack(">ii", 1, 1) + self.text(path) + self.text(self.payload) + acl))
            error = struct.unpack_from(">iqi", self.exactly(int.from_bytes(self.exactly(4))))[2]
            if error not in (0, self.EXISTS):
                raise Refused(f"ZooKeeper's error {error}")

    @staticmethod
    def text(data: bytes) -> bytes:
        """Encode bytes with their length before them."""
        return struct.pack(">i", len(data)) + data

    @staticmethod
    def node(number: int) -> bytes:
        """Path of a node."""
        return b"/log/%d" % (number % NODES)

    def request(self, number: int) -> bytes:
        body = struct.pack(">ii", number, 5) + self.text(self.node(number)) + self.text(self.payload)
        return self.text(body + b"\xff\xff\xff\xff")

    def parse(self, received: bytearray) -> Iterator[int]:
        at = 0
        while len(received) >= at + 4 and len(received) >= at + 4 + (size := int.from_bytes(received[at : at + 4])):
            number, _, error = struct.unpack_from(">iqi", received, at + 4)
            if error:
                raise Refused(f"ZooKeeper's error {error}")
            at += 4 + size
            yield number
        del received[:at]


class RabbitMQ(Connection):
    """Persistent messages into one quorum queue, with the publisher's confirms (AMQP 0-9-1)."""

    QUEUE = b"log"
    METHOD, HEADER, BODY = 1, 2, 3

    def open(self) -> None:
        self._oldest, self._open = 1, set[int]()
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.expect(10, 10)
        plain = b"\x00guest\x00guest"
        self.call(0, 10, 11, b"\x00\x00\x00\x00\x05PLAIN" + struct.pack(">I", len(plain)) + plain + b"\x05en_US")
        channels, size = struct.unpack_from(">HI", self.expect(10, 30))
        self.call(0, 10, 31, struct.pack(">HIH", channels, size, 0))
        self.call(0, 10, 40, b"\x01/\x00\x00")
        self.expect(10, 41)
        self.call(1, 20, 10, b"\x00")
        self.expect(20, 11)
        self.call(1, 85, 10, b"\x00")
        self.expect(85, 11)
        publish = struct.pack(">HHH", 60, 40, 0) + b"\x00" + bytes([len(self.QUEUE)]) + self.QUEUE + b"\x00"
        head = struct.pack(">HHQHB", 60, 0, len(self.payload), 0x1000, 2)
        parts = (self.payload[at : at + size - 8] for at in range(0, len(self.payload), size - 8))
        self._message = self.frame(self.METHOD, 1, publish) + self.frame(self.HEADER, 1, head) + b"".join(
            self.frame(self.BODY, 1, part) for part in parts)

    def setup(self) -> None:
        kind = b"\x0cx-queue-typeS" + struct.pack(">I", 6) + b"quorum"
        table = struct.pack(">I", len(kind)) + kind
        self.call(1, 50, 10, b"\x00\x00" + bytes([len(self.QUEUE)]) + self.QUEUE + b"\x02" + table)
        self.expect(50, 11)

    @staticmethod
    def frame(kind: int, channel: int, body: bytes) -> bytes:
        """Encode a frame of AMQP."""
        return struct.pack(">BHI", kind, channel, len(body)) + body + b"\xce"

    def call(self, channel: int, of: int, method: int, rest: bytes) -> None:
        """Send a method."""
        self.socket.sendall(self.frame(self.METHOD, channel, struct.pack(">HH", of, method) + rest))

    def expect(self, of: int, method: int) -> bytes:
        """Wait for a method; returns its arguments. Raises Refused for another one."""
        size = struct.unpack(">BHI", self.exactly(7))[2]
        body = self.exactly(size + 1)
        if struct.unpack_from(">HH", body) != (of, method):
            raise Refused(f"RabbitMQ says {body!r}")
        return body[4:-1]

    def request(self, number: int) -> bytes:
        self._open.add(number)
        return self._message

    def parse(self, received: bytearray) -> Iterator[int]:
        at = 0
        while len(received) >= at + 8 and len(received) >= at + 8 + (size := int.from_bytes(received[at + 3 : at + 7])):
            if struct.unpack_from(">HH", received, at + 7) != (60, 80):
                raise Refused(f"RabbitMQ says {bytes(received[at : at + size + 8])!r}")
            number, several = struct.unpack_from(">QB", received, at + 11)
            at += 8 + size
            confirmed = self._open.intersection(range(self._oldest, number + 1) if several else (number,))
            self._open -= confirmed
            self._oldest = number + 1 if several else self._oldest
            yield from confirmed
        del received[:at]


class Nats(Connection):
    """Publishes to a JetStream stream of three replicas on disk, each answered by the stream."""

    def open(self) -> None:
        self.line()
        self._inbox = f"_INBOX.{os.getpid()}.{self.socket.getsockname()[1]}".encode()
        self.socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b.* 1\r\nPING\r\n' % self._inbox)
        while self.line() != b"PONG":
            continue

    def line(self) -> bytes:
        """Wait for a line."""
        found = b""
        while not found.endswith(b"\r\n"):
            found += self.exactly(1)
        return found[:-2]

    def setup(self) -> None:
        wanted = json.dumps({"name": STREAM, "subjects": ["log"], "num_replicas": 3, "storage": "file",
                             "retention": "limits", "discard": "old"}).encode()
        until_s = time.monotonic() + SETUP_WITHIN_S
        while time.monotonic() < until_s:
            subject = b"$JS.API.STREAM.CREATE.%b" % STREAM.encode()
            self.socket.sendall(b"PUB %b %b.0 %d\r\n%b\r\n" % (subject, self._inbox, len(wanted), wanted))
            while not (line := self.line()).startswith(b"MSG"):
                if line == b"PING":
                    self.socket.sendall(b"PONG\r\n")
            if b'"error"' not in (said := self.exactly(int(line.split()[-1]) + 2)):
                return
            time.sleep(0.3)
        raise Refused(f"NATS: {said!r}")

    def request(self, number: int) -> bytes:
        return b"PUB log %b.%d %d\r\n%b\r\n" % (self._inbox, number, len(self.payload), self.payload)

    def parse(self, received: bytearray) -> Iterator[int]:
        at = 0
        while (end := received.find(b"\r\n", at)) >= 0:
            words = received[at:end].split()
            if words[0] == b"MSG":
                size = int(words[-1])
                if len(received) < end + 4 + size:
                    break
                if b'"error"' in received[end + 2 : end + 2 + size]:
                    raise Refused(f"NATS: {bytes(received[end : end + size])!r}")
                yield int(words[1].rpartition(b".")[2])
                end += 2 + size
            elif words[0] == b"PING":
                self.socket.sendall(b"PONG\r\n")
            elif words[0].startswith(b"-"):
                raise Refused(f"NATS: {bytes(received[at:end])!r}")
            at = end + 2
        del received[:at]


KINDS: dict[str, type[Connection]] = {"etcd": Etcd, "zookeeper": ZooKeeper, "rabbitmq": RabbitMQ, "nats": Nats}


class Load:
    """Writes in flight on all connections, until the time is over and all are answered."""

    def __init__(self, connections: list[Connection], outstanding: int) -> None:
        self._connections = {connection.socket.fileno(): connection for connection in connections}
        self._outstanding = outstanding
        self.latencies_s: list[float] = []
        self.elapsed_s = 0.0

    def run(self, seconds: float) -> None:
        """Keep the writes in flight. Raises Refused."""
        poller, clock = select.epoll(), time.perf_counter
        each, more = divmod(self._outstanding, len(self._connections))
        started_s = clock()
        for number, (descriptor, connection) in enumerate(self._connections.items()):
            poller.register(descriptor, select.EPOLLIN)
            connection.write(each + (number < more), clock())
        under_way = self._outstanding
        while under_way:
            for descriptor, _ in poller.poll():
                connection = self._connections[descriptor]
                answered = list(connection.answers())
                now_s = clock()
                self.latencies_s += [now_s - connection.started_s.pop(number) for number in answered]
                if now_s < started_s + seconds:
                    if answered:
                        connection.write(len(answered), now_s)
                else:
                    under_way -= len(answered)
        self.elapsed_s = clock() - started_s

    def fields(self, payload_bytes: int) -> dict[str, float]:
        """The JSON line."""
        count, ordered = len(self.latencies_s), sorted(self.latencies_s)
        rate = count / self.elapsed_s
        p50, p99 = (round(ordered[int(count * part)] * 1000, 3) for part in (0.5, 0.99))
        return {"ops_per_s": round(rate, 1), "mb_per_s": round(rate * payload_bytes / 1e6, 3), "p50_ms": p50,
                "p99_ms": p99, "errors": 0, "appends": count}


def main() -> None:
    """Load a peer; print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=KINDS)
    parser.add_argument("port", type=int)
    parser.add_argument("--payload", type=int, default=100)
    parser.add_argument("--outstanding", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--setup", action="store_true")
    given = parser.parse_args()
    payload = os.urandom(given.payload)
    if given.setup:
        KINDS[given.peer](given.port, payload).setup()
    load = Load([KINDS[given.peer](given.port, payload) for _ in range(given.connections)], given.outstanding)
    load.run(given.seconds)
    print(json.dumps(load.fields(given.payload)))


if __name__ == "__main__":
    main()
