"""The functions that the commands call to search and repair: requeue, vacuum, setup of clouds."""
