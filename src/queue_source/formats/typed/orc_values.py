"""Values of ORC as Spark has them: moments and not local times, today's calendar, texts without padding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.common.times import parse_time_zone
from queue_source.formats.typed import orc_file
from queue_source.formats.typed.calendars import gregorian_days, gregorian_micros
from queue_source.formats.typed.columns import over_children
from queue_source.formats.typed.orc_file import OrcFile
from queue_source.formats.zones import instants

_EPOCH = 1_420_070_400_000_000
"""2015-01-01 00:00: what is written are seconds since then, in the zone of the writer."""
_SECOND = 1_000_000


class Values:
    """Corrects the values that pyarrow decodes from a stripe whose zone is taken for GMT."""

    def __init__(self, orc: OrcFile, zone: str) -> None:
        self._types = orc.types
        self._is_hybrid = orc.is_hybrid
        self._zone = parse_time_zone(zone) if zone else "UTC"
        self._shift = _shift(self._zone)

    def column(self, array: pa.Array, name: str) -> pa.Array:
        """Convert a column of the file; raises ValueError for one that cannot be read without a loss."""
        root = self._types[0]
        return self._right(array, root.inner[root.names.index(name)])

    def _right(self, array: pa.Array, number: int) -> pa.Array:
        written = self._types[number]
        if written.kind == orc_file.STRUCT:
            children = [self._right(child, n) for child, n in zip(array.flatten(), written.inner, strict=True)]
            fields = [pa.field(name, child.type) for name, child in zip(written.names, children, strict=True)]
            return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
        if written.kind == orc_file.LIST:
            values = self._right(array.values, written.inner[0])
            return over_children(array, pa.list_(values.type), [values])
        if written.kind == orc_file.MAP:
            keys, items = self._right(array.keys, written.inner[0]), self._right(array.items, written.inner[1])
            entries = pa.StructArray.from_arrays(
                [keys, items], fields=[pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
            )
            return over_children(array, pa.map_(keys.type, items.type), [entries])
        if written.kind == orc_file.DATE and self._is_hybrid:
            return gregorian_days(array.view(pa.int32())).view(pa.date32())
        if written.kind == orc_file.CHAR:
            return pc.utf8_rtrim(array, characters=" ")
        if written.kind == orc_file.DECIMAL and not written.precision and len(array):
            raise ValueError("Hive 0.11 wrote its decimals with digits that pyarrow cuts off; write the file anew")
        if pt.is_timestamp(array.type):
            return self._moments(array, written.kind)
        return array

    def _moments(self, array: pa.Array, kind: int) -> pa.Array:
        """Convert to microseconds: digits of nanoseconds are left out, as in Spark."""
        nanos = np.asarray(array.view(pa.int64()).fill_null(0))
        micros = nanos // 1000
        if kind == orc_file.TIMESTAMP:
            micros += self._shift + _seconds_amiss(nanos, self._shift // _SECOND) * _SECOND
        moments = pc.if_else(array.is_valid(), pa.array(micros), pa.scalar(None, pa.int64()))
        return (gregorian_micros(moments, self._zone) if self._is_hybrid else moments).cast(
            pa.timestamp("us", tz=self._zone)
        )


def _shift(zone: str) -> int:
    """Return the microseconds from the writer's count to the count since 1970 in UTC."""
    local = pa.scalar(_EPOCH, pa.timestamp("us"))
    return int(instants(local, zone).cast(pa.int64()).as_py()) - _EPOCH


def _seconds_amiss(nanos: np.ndarray, shift: int) -> np.ndarray:
    """Return the seconds (-1, 0 or 1) by which pyarrow is wrong. `nanos` are at the clock of the writer.

    Where there is a whole millisecond of a fraction, writers cut the second of a moment before 1970 towards 1970, and
    readers take one off. ORC for Java checks for that whether the moment is before 1970; pyarrow, which takes the zone
    for GMT, whether the writer's clock is. They differ in the hours between these two. The writer for Java writes -0.5
    s as 0.5 s, which is what Spark reads. Negative nanoseconds, which only pyarrow writes, are in GMT.
    """
    seconds, fractions = np.divmod(nanos, 1_000_000_000)
    too_early = (-shift - 1 <= seconds) & (seconds < -1)
    too_late = (seconds >= 0) & (seconds < -shift)
    corrections: np.ndarray = (fractions > 999_999) * (too_early.astype(np.int64) - too_late)
    return corrections
