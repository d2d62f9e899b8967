"""Work requests, made and linked once and used for ever: building one costs ten times what changing
it does. The adapter copies a request when it is posted, so the next chain may follow at once."""

from typing import Any

from moonpool.transfer.base import Op
from moonpool.transfer.transports.rdma_verbs import Verbs

CHAIN_MAX = 64


class Chain:
    """`CHAIN_MAX` linked requests. A shorter chain is posted from the middle, so that links and
    flags never change and the last one always tells of its completion. Used by one thread."""

    def __init__(self, verbs: Verbs) -> None:
        enums = verbs.enums
        self._opcodes = {Op.READ: enums.IBV_WR_RDMA_READ, Op.WRITE: enums.IBV_WR_RDMA_WRITE}
        self._requests: list[Any] = []
        self._pieces: list[Any] = []
        following = None
        for place in range(CHAIN_MAX):  # from the last to the first
            piece = verbs.wr.SGE(0, 0, 0)
            request = verbs.wr.SendWR(
                num_sge=1,
                sg=[piece],
                opcode=self._opcodes[Op.READ],
                send_flags=0 if place else enums.IBV_SEND_SIGNALED,
                next_wr=following,
            )
            request.close()  # frees the list it copied; it reads ours instead, from now on
            request.sg_list = piece
            following = request
            self._requests.append(request)
            self._pieces.append(piece)
        self._requests.reverse()
        self._pieces.reverse()

    def post(
        self,
        qp: Any,
        op: Op,
        wr_id: int,
        keys: tuple[int, int],
        here: list[int],
        there: list[int],
        lengths: list[int],
    ) -> None:
        """At most `CHAIN_MAX` ranges in one call; `keys` are the local and the remote one. One
        completion with `wr_id` tells that all are done. Raises pyverbs' error."""
        first = CHAIN_MAX - len(lengths)
        opcode = self._opcodes[op]
        lkey, rkey = keys
        for at, (local, remote, length) in enumerate(zip(here, there, lengths, strict=True), first):
            request, piece = self._requests[at], self._pieces[at]
            piece.addr = local
            piece.length = length
            piece.lkey = lkey
            request.wr_id = wr_id
            request.opcode = opcode
            request.set_wr_rdma(rkey, remote)
        qp.post_send(self._requests[first])

    def close(self) -> None:
        """Not to be used afterwards."""
        for piece in self._pieces:
            piece.close()
        self._requests.clear()
        self._pieces.clear()
