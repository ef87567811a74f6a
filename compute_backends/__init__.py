"""Where a run can go: one Protocol, and one file per provider."""
