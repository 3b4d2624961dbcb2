"""cuesqueue: the Spark source, sink and commands for what message queues announce."""
