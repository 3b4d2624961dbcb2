"""`queue_source.delivery` of 0.1.0; import `cuesqueue` instead."""

from queue_source.foreach_batch.delivery import Delivery, Output, delivery

__all__ = ["Delivery", "Output", "delivery"]
