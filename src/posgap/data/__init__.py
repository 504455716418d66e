"""Data: public and own files read, fetched, made, and what is expected of examples."""
