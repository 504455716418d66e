"""The data verbs: make synthetic files in public formats, import public files as examples."""

import logging
from pathlib import Path

from posgap.config import ImportConfig, MakeKVConfig, MakeTwoHopConfig
from posgap.errors import PosgapError
from posgap.files import write_jsonl
from posgap.tasks.examples import write_examples
from posgap.tasks.multihop_readers import read_hotpotqa, read_musique
from posgap.tasks.readers import read_litm_kv, read_litm_qa, take_lines
from posgap.tasks.two_hop import two_hop_examples
from posgap.tasks.uuids import uuid_records

log = logging.getLogger(__name__)


def make_kv(config: MakeKVConfig) -> Path:
    """Writes `config.n_examples` lines of UUID records."""
    write_jsonl(config.out, uuid_records(config.n_examples, config.n_keys, config.seed))
    log.info("wrote %d examples of %d records to %s", config.n_examples, config.n_keys, config.out)
    return config.out


def make_two_hop(config: MakeTwoHopConfig) -> Path:
    """Writes `config.n_examples` two-hop examples, no two of them alike."""
    write_examples(config.out, two_hop_examples(config.n_examples, config.n_docs, config.seed))
    log.info("wrote %d examples of %d documents to %s", config.n_examples, config.n_docs, config.out)
    return config.out


def import_examples(config: ImportConfig) -> Path:
    """Writes the examples of a public file, or of some of its lines.

    Those without exactly two hops (in two-hop formats) or with fewer documents than
    `config.min_docs` are left out, and counted in the log.
    """
    if config.format == "litm-kv":
        found = read_litm_kv(config.input, config.key_digits, config.value_digits, config.queries, config.seed)
    elif config.format == "litm-qa":
        found = read_litm_qa(config.input)
    elif config.format == "musique":
        found = read_musique(config.input)
    else:
        found = read_hotpotqa(config.input)  # 2WikiMultiHopQA has its form
    taken = list(take_lines(found, config.first, config.last))
    usable = [example for example in taken if example is not None]
    examples = [e for e in usable if len(e.gold) + len(e.distractors) >= config.min_docs]
    if len(usable) < len(taken):
        log.info("left out %d that do not rest on two documents", len(taken) - len(usable))
    if len(examples) < len(usable):
        log.info("left out %d of fewer than %d documents", len(usable) - len(examples), config.min_docs)
    if not examples:
        raise PosgapError(
            f"{config.input}: no examples to import in lines {config.first} to {config.last or 'the end'}"
            + (f"; {len(taken)} were left out" if taken else "")
        )
    write_examples(config.out, examples)
    log.info("imported %d examples from %s to %s", len(examples), config.input, config.out)
    return config.out
