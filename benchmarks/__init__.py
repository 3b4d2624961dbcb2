"""One command, one table, ratios measured in one run; run by `make bench`."""
