"""What the commands call to find and repair: requeue, vacuum, setup of clouds."""
