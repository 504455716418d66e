"""data make: writes synthetic data, or gives questions distractors."""

from pathlib import Path

from posgap.data.generators import GENERATORS
from posgap.data.reading import write_examples
from posgap.foundation.files import write_jsonl
from posgap.foundation.printing import format_count
from posgap.options.data_make import MakeConfig
from posgap.verbs.file_output import writes_file


@writes_file
def data_make(config: MakeConfig, file: Path) -> str:
    """Writes what the kind of data makes."""
    kind = GENERATORS[config.kind]
    options = kind.arguments({name: getattr(config, name) for name in kind.takes()})
    n_examples = write_jsonl(file, kind.rows(**options)) if kind.rows else write_examples(file, kind.make(**options))
    return f"wrote {format_count(n_examples, 'example')} of {options['n_docs']} {kind.items}"
