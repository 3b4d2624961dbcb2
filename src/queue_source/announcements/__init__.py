"""From the bytes of a message to the objects that it announces."""
