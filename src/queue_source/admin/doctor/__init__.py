"""The checks of `cuesqueue doctor`, of a machine, a store, queues and objects. They change nothing."""

from __future__ import annotations

from queue_source.admin.doctor.findings import Finding, State
from queue_source.admin.doctor.machine import examine_machine
from queue_source.admin.doctor.services import examine_prefixes, examine_queues, examine_store

__all__ = ["Finding", "State", "examine_machine", "examine_prefixes", "examine_queues", "examine_store"]
