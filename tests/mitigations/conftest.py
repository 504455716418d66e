"""Fixtures of tests/mitigations."""

import pytest
import torch


@pytest.fixture
def ids():
    return torch.randint(3, 60, (2, 24), generator=torch.Generator().manual_seed(1))
