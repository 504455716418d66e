"""Pos2Distill (Wang et al., EMNLP 2025): distils a model's own answers at its best position into the others."""

import logging

# peft imports bitsandbytes where it is installed, which warns of a kernel that is not of use here.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
