"""Writing objects over a line: one question, with the bytes and then their checksums in it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from moonpool.bus import RequestTimeout
from moonpool.client.kit import Kit
from moonpool.client.line_asking import entered
from moonpool.client.outcomes import Outcome
from moonpool.client.source import Source
from moonpool.kv.checksum import CHECKSUM_BYTES, checksum_of
from moonpool.messages.codec import decode, encode
from moonpool.messages.keyed import KeyedItem, KeyedPut, KeyedPutDone, Said
from moonpool.transfer.line_frames import pack_line
from moonpool.transfer.lines import LOOK_LONG_S, Line
from moonpool.transfer.vectored import StreamBroken

GROUP_BYTES = 512 << 10  # sent together
PAYLOAD_MAX_BYTES = 32 << 20  # of one question; above, what the node does not want costs too much


async def put_on_line(kit: Kit, node: str, sources: Sequence[Source]) -> list[Outcome] | None:
    """One outcome per object; None: nothing was stored, and the bus is to be asked. Raises what the
    node answers, NoResponder, RequestTimeout: it may then have been stored."""
    if sum(source.size_bytes for source in sources) > PAYLOAD_MAX_BYTES:
        return None
    line = await kit.lines.lend(node)
    if line is None:
        return None
    put, done = _Put(kit, node, line), False
    try:
        out = await put.run(sources)
        done = True
        return list(out)
    except StreamBroken as error:
        if not put.said_all:
            return None
        await kit.blocks.calls.probe(node)  # a node that is gone has nothing of it
        raise RequestTimeout(node, kit.lines.timeout_s) from error
    finally:
        if done:
            kit.lines.give_back(node, line)
        else:
            kit.lines.drop(node, line)


class _Put:
    """One question."""

    def __init__(self, kit: Kit, node: str, line: Line) -> None:
        self._kit = kit
        self._node = node
        self._line = line
        self.said_all = False  # from then on it may happen

    async def run(self, sources: Sequence[Source]) -> list[str]:
        lines, line, number = self._kit.lines, self._line, self._kit.lines.next_number()
        items = [KeyedItem(s.key, s.size_bytes, s.chunk_bytes, s.takes) for s in sources]
        chunks = sum(s.size_bytes // s.chunk_bytes for s in sources)
        payload_bytes = sum(s.size_bytes for s in sources) + chunks * CHECKSUM_BYTES
        head = pack_line(Said.PUT, number, encode(KeyedPut(items)), payload_bytes)
        before: list[bytes | memoryview] = [*head]  # goes with the first bytes
        sums: list[bytes] = []
        with ExitStack() as stack:
            for source in sources:
                stack.enter_context(entered(source.body, line))
                for group in _groups(source):
                    views = [part for parts in group for part in parts]
                    await lines.tell(self._node, line, *before, *views, more=True)
                    before = []
                    sums += [checksum_of(*parts) for parts in group]  # while in the cache
                    await line.rest()
        self.said_all = True
        await lines.tell(self._node, line, b"".join(sums))
        frame = await lines.answer(self._node, line, number, LOOK_LONG_S)
        results = decode(frame.body, KeyedPutDone).results
        if len(results) != len(sources):
            raise StreamBroken(0, "an answer to another question")
        return results


def _groups(source: Source) -> Iterator[list[list[memoryview]]]:
    """The pieces of each chunk of an object, several small chunks together."""
    group: list[list[memoryview]] = []
    for parts in _chunks(source):
        group.append(parts)
        if len(group) * source.chunk_bytes >= GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _chunks(source: Source) -> Iterator[list[memoryview]]:
    """The pieces of each chunk of an object."""
    region, at = source.body
    body, tail = region.view[at : at + source.body_bytes], memoryview(source.tail)
    for low in range(0, source.size_bytes, source.chunk_bytes):
        high, parts = low + source.chunk_bytes, []
        if low < source.body_bytes:
            parts.append(body[low:high])
        if high > source.body_bytes:
            parts.append(tail[max(low - source.body_bytes, 0) : high - source.body_bytes])
        yield parts
