"""The web page, the metrics and the health of a store, for `cuesqueue serve`. It only reads the store."""
