"""The receipts that callers keep, and the service's own, which are others after every extension."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from queue_source.messages import Receipt

_RECEIPT = re.compile(r"([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})/([\w+/=.%-]+)", re.ASCII)
_KEPT_SECONDS = 600.0  # beyond its end: then a lease is given up for lost, or its message is done


@dataclass(slots=True, eq=False)
class Lease:
    """One delivery of a message: `pop_receipt` is valid for the next request, and another after it.

    Hold `lock` from reading it to writing the next one: an acknowledgement waits for an extension that is under way.
    `is_over`: it was ended by us, or found lost.
    """

    message_id: str
    pop_receipt: str
    until: float
    is_over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Leases:
    """The deliveries in flight. A receipt that is not here, such as one of an earlier process, has its first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: OrderedDict[Receipt, Lease] = OrderedDict()  # about in the order of their ends

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, message_id: str, pop_receipt: str, until: float) -> Receipt:
        """Note a delivery; return the receipt that names it for as long as it lasts."""
        receipt = Receipt(f"{message_id}/{pop_receipt}")
        with self._lock:
            self._leases[receipt] = Lease(message_id, pop_receipt, until)
        return receipt

    def find(self, receipts: Sequence[Receipt]) -> dict[Receipt, Lease]:
        """Return the leases of receipts, each once; those that are the receipts of no message are left out."""
        with self._lock:
            self._drop_old()
            leases = {receipt: self._leases.get(receipt) or _parsed(receipt) for receipt in receipts}
        return {receipt: lease for receipt, lease in leases.items() if lease is not None}

    def extend(self, receipt: Receipt, lease: Lease, pop_receipt: str, until: float) -> None:
        """Note the next receipt of a lease, whose lock the caller holds."""
        lease.pop_receipt, lease.until = pop_receipt, until
        with self._lock:
            self._leases[receipt] = lease
            self._leases.move_to_end(receipt)

    def end(self, receipt: Receipt, lease: Lease) -> None:
        """Forget a lease, whose lock the caller holds: it is lost, given back, or its message is done."""
        lease.is_over = True
        with self._lock:
            if self._leases.get(receipt) is lease:
                del self._leases[receipt]

    def _drop_old(self) -> None:
        now = time.monotonic()
        while self._leases:
            first = next(iter(self._leases.values()))
            if first.until + _KEPT_SECONDS > now:
                return
            self._leases.popitem(last=False)


def _parsed(receipt: Receipt) -> Lease | None:
    parts = _RECEIPT.fullmatch(receipt)
    return None if parts is None else Lease(parts[1], parts[2], 0.0)
