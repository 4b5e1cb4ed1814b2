"""A mesh of network namespaces, one a chip, and what is measured over it."""
