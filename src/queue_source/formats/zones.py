"""From local times to instants, in a zone by its name or its offset."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from queue_source.common.times import fixed_offset


def instants(local: pa.Array | pa.Scalar, zone: str) -> pa.Array | pa.Scalar:
    """Convert timestamps without a zone to instants.

    When the clock is put back the earlier one is taken, when it skips the later. `zone` is what `parse_time_zone`
    returned. Older versions of pyarrow know no offsets: these are subtracted here.
    """
    offset = fixed_offset(zone)
    if offset is None:
        return pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
    unit = local.type.unit
    shifted = pc.subtract_checked(local, pa.scalar(offset, pa.duration(unit)))
    return shifted.cast(pa.timestamp(unit, tz="UTC"))
