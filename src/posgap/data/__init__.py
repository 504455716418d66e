"""Data: reading public and own files, fetching and making them, and the checks that examples must pass."""
