"""What goes on beside the queries: pruning, cleaning, and whose turn it is to do so."""
