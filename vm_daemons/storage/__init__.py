"""VM: the durable store, what it stands on, and how what is only here gets there."""
