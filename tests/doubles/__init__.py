"""Doubles of services that tests can't reach: one Google account's Drive, its HTTP interface and its mount."""
