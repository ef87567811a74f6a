"""Laptop: HTTP file bridge, command queue and its ledger, tunnel, pairing."""
