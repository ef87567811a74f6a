"""VM: bootstrap, command daemon, status daemon, stage runner, durable store. Standard library and requests."""
