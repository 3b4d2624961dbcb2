"""The sink with `table`: rows are appended to an Apache Iceberg table. Needs PyIceberg (the extra `iceberg`)."""

from __future__ import annotations

from queue_source.errors import OptionError

try:
    import pyiceberg  # noqa: F401 -- imported here, so that one place says how to install it
    import pyiceberg_core  # noqa: F401 -- PyIceberg's partition transforms
except ModuleNotFoundError as error:
    raise OptionError(
        "table", f"needs PyIceberg ({error}): pip install 'cuesqueue[iceberg]' on all machines"
    ) from error

from queue_source.sinks.iceberg.commits import IcebergSink
from queue_source.sinks.iceberg.register import RegisteringSink

__all__ = ["IcebergSink", "RegisteringSink"]
