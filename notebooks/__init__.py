"""Notebooks that ship as data: a few cells, no logic."""
