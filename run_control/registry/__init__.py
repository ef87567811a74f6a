"""The registry of models: an append-only journal in the durable store, and the steps that a model climbs."""
