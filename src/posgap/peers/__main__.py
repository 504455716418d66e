"""Prints the folder of the tasks for lm-evaluation-harness: `lm_eval --include_path "$(python -m posgap.peers)"`."""

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).parent)
