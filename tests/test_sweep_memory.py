"""A sweep's memory does not grow with the number of its examples."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.nightly
@pytest.mark.slow
def test_four_times_the_examples_take_no_more_memory():
    """Some MiB of 560 are the allocator's mood; the caches of 24 more examples would be 28."""
    script = [sys.executable, ROOT / "benchmarks" / "sweep_scaling.py", "--quick"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["examples_ratio"] == 4 and found["peak_growth"] < 1.03
