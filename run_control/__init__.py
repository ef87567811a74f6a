"""Laptop: project file, command line, what `up` and `demo` do."""
