"""A package that adds one choice of each kind to posgap: docs/extending.md shows its files, a test installs it."""
