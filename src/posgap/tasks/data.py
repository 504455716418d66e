"""The data verbs: make synthetic files in public formats, import public files as examples."""

import logging
from pathlib import Path

from posgap.config import ImportConfig, MakeKVConfig
from posgap.errors import PosgapError
from posgap.files import write_jsonl
from posgap.tasks.examples import write_examples
from posgap.tasks.readers import read_litm_kv, read_litm_qa, take_lines
from posgap.tasks.uuids import uuid_records

log = logging.getLogger(__name__)


def make_kv(config: MakeKVConfig) -> Path:
    """Writes `config.n_examples` lines of UUID records."""
    write_jsonl(config.out, uuid_records(config.n_examples, config.n_keys, config.seed))
    log.info("wrote %d examples of %d records to %s", config.n_examples, config.n_keys, config.out)
    return config.out


def import_examples(config: ImportConfig) -> Path:
    """Writes the examples of a public file, or of some of its lines."""
    if config.format == "litm-kv":
        found = read_litm_kv(config.input, config.key_digits, config.value_digits, config.queries, config.seed)
    else:
        found = read_litm_qa(config.input)
    examples = list(take_lines(found, config.first, config.last))
    if not examples:
        raise PosgapError(f"{config.input}: no examples in lines {config.first} to {config.last or 'the end'}")
    write_examples(config.out, examples)
    log.info("imported %d examples from %s to %s", len(examples), config.input, config.out)
    return config.out
