"""The engine's ZMQ sockets: batches as they are published, and those missed, on request.

Three frames each: topic, an 8-byte big-endian number, and the msgpack. The replay socket is asked
with the first number wanted, and ends with the number -1.
"""

from collections.abc import AsyncIterator

import zmq
import zmq.asyncio

from moonpool.messages.errors import CallerError, PeerError

WAITING_MAX = 100_000  # batches that wait in the socket, beyond which the engine drops them
REPLAY_TIMEOUT_S = 5.0  # for each batch of a replay
_END = (1 << 64) - 1  # -1 as the wire has it


class BadEndpoint(CallerError):
    code = "bad_endpoint"


class NoReplay(PeerError):
    """The engine did not replay what was asked for."""

    code = "no_replay"


class EngineLink:
    """One engine's events. Close it. Raises BadEndpoint."""

    def __init__(self, endpoint: str, replay_endpoint: str, topic: str) -> None:
        self._context = zmq.asyncio.Context()
        self._replay_endpoint = replay_endpoint
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, WAITING_MAX)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.malformed = 0
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BadEndpoint(f"cannot connect to {endpoint!r}: {error}") from error

    @property
    def can_replay(self) -> bool:
        return bool(self._replay_endpoint)

    async def batches(self) -> AsyncIterator[tuple[int, bytes]]:
        """(number, msgpack) as they come, until cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            if len(frames) == 3 and len(frames[1]) == 8:
                yield int.from_bytes(frames[1], "big"), frames[2]
            else:
                self.malformed += 1

    async def replay(self, first: int) -> list[tuple[int, bytes]]:
        """Batches from number `first` on that the engine still has. Raises NoReplay."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            return await self._replayed(socket)
        except zmq.ZMQError as error:
            raise NoReplay(f"{self._replay_endpoint}: {error}") from error
        finally:
            socket.close()

    async def _replayed(self, socket: zmq.asyncio.Socket) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while await socket.poll(REPLAY_TIMEOUT_S * 1000):
            frames = await socket.recv_multipart()
            if len(frames) < 2 or len(frames[-2]) != 8:
                raise NoReplay(f"{self._replay_endpoint} does not speak as a replay socket")
            seq = int.from_bytes(frames[-2], "big")
            if seq == _END:
                return found
            found.append((seq, frames[-1]))
        raise NoReplay(f"{self._replay_endpoint} does not answer")

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()
        self._context.term()
