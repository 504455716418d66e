"""Prompts filled up for the tiny tokenizer."""

from examples import kv_example


def tiny(n_records: int = 60, n: int = 4):
    """Records that the tiny tokenizer reads as four tokens each, so that none can be cut."""
    return [kv_example(i, n_records) for i in range(n)]


def tiny_length(n_docs: int, new: int = 2) -> int:
    return 4 * n_docs + 6 + new
