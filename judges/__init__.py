"""Judges of a placement that share no code with the library: SimGrid, and sockets between network namespaces."""
