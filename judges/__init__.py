"""Judges of a placement that share no code with the library: SimGrid, and a mesh of sockets between network namespaces."""
