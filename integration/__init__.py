"""The same promises against real servers, with faults; run by `make integration`."""
