"""Numbers on their way from a node to a screen: simulate, ingest, store, detect."""
