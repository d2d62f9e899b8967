"""One reliable queue pair (RC) of a connection."""

import ipaddress
import secrets
from typing import Any

from moonpool.transfer.transports.rdma_device import Device
from moonpool.transfer.transports.rdma_wire import End, QueueEnd

ACK_TIMEOUT = 16  # 4.096 us * 2^16 = 0.27 s without an acknowledgement, then again
RETRIES = 7  # so a silent peer is known after about 2 s
RNR_TIMER = 12


class Queue:
    """Owned by one thread. Close it before its CQ."""

    def __init__(self, device: Device, pd: Any, cq: Any, depth: int) -> None:
        verbs = device.verbs
        self._device = device
        capacity = verbs.qp.QPCap(
            max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=0
        )
        wish = verbs.qp.QPInitAttr(
            qp_type=verbs.enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=capacity, sq_sig_all=0
        )
        self.qp = verbs.qp.QP(pd, wish)
        self.end = QueueEnd(self.qp.qp_num, secrets.randbits(24))
        self.free = depth  # requests that may still be posted

    def connect(self, peer: End, its: QueueEnd, *, remote_access: bool) -> None:
        """Raises pyverbs' error or ValueError when the peer's address cannot be."""
        device, verbs = self._device, self._device.verbs
        enums = verbs.enums
        both = enums.IBV_ACCESS_REMOTE_READ | enums.IBV_ACCESS_REMOTE_WRITE
        route = verbs.addr.GlobalRoute(
            dgid=verbs.addr.GID(ipaddress.IPv6Address(peer.gid).exploded),
            sgid_index=device.gid.index,
            hop_limit=64,
        )
        attributes = verbs.qp.QPAttr(port_num=device.port)
        attributes.qp_access_flags = both if remote_access else 0
        self.qp.to_init(attributes)
        attributes.ah_attr = verbs.addr.AHAttr(
            gr=route, is_global=1, port_num=device.port, dlid=peer.lid
        )
        attributes.path_mtu = min(device.mtu, peer.mtu)
        attributes.dest_qp_num = its.number
        attributes.rq_psn = its.psn
        attributes.sq_psn = self.end.psn
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = min(
            device.reads_max, peer.reads_max
        )
        attributes.min_rnr_timer = RNR_TIMER
        attributes.timeout = ACK_TIMEOUT
        attributes.retry_cnt = attributes.rnr_retry = RETRIES
        self.qp.to_rtr(attributes)
        self.qp.to_rts(attributes)

    def close(self) -> None:
        """After it the adapter touches no memory of ours on this queue pair's account."""
        self.qp.close()
