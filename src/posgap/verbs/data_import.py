"""data import: a public data file, or your own, as examples."""

from collections.abc import Callable, Iterator
from pathlib import Path

from posgap.data.choice_files import LAYOUTS
from posgap.data.documents import read_documents
from posgap.data.fetching import fetch_source
from posgap.data.import_report import ImportReport, without_answering
from posgap.data.readers import read_dpr, read_hotpotqa, read_litm_kv, read_litm_qa, read_musique, read_own
from posgap.data.reading import with_unique_ids, write_examples
from posgap.data.retrieval_logs import RetrievalLog
from posgap.data.sources import SOURCES
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_rows
from posgap.foundation.locations import Location
from posgap.foundation.printing import format_count
from posgap.foundation.rows import kind_of_table
from posgap.options.data_import import ImportConfig
from posgap.tasks.examples import AnyExample
from posgap.verbs.file_output import writes_file

_READERS: dict[str, Callable[[Path], Iterator[tuple[int, AnyExample | None]]]] = {
    "litm-qa": read_litm_qa,
    "dpr": read_dpr,
    "own": read_own,
    "document": read_documents,
    "hotpotqa": read_hotpotqa,
    "2wiki": read_hotpotqa,  # the same format
    "musique": read_musique,
    **{name: layout.read_file for name, layout in LAYOUTS.items()},
}


# What an example is missing if a reader leaves it out.
_WITHOUT = {
    "dpr": "without a passage that contains the answer",
    "litm-qa": "without a passage that is marked as gold",
    **{name: layout.left_out for name, layout in LAYOUTS.items()},
}


_NOT_TWO = "that do not rest on two documents that are both there and have unique titles"


def data_import(config: ImportConfig) -> Location:
    """Writes the examples of a file, or of a public one, which is downloaded into the cache first."""
    public = SOURCES.get(str(config.input))
    if public and not Path(config.input).exists():
        own = {"format"} & config.model_fields_set
        config = config.model_copy(update={"input": fetch_source(public)} | ({} if own else {"format": public.format}))
    return _import_file(config)


@writes_file
def _import_file(config: ImportConfig, file: Path) -> str:
    """Writes the examples of a file, or of some of its lines.

    Examples without the gold documents of their format (two hops, or one passage), or with fewer than
    `config.min_docs` documents, are left out and counted in the log.
    """
    report = ImportReport()
    without = _WITHOUT.get(config.format, _NOT_TWO)

    def usable() -> Iterator[tuple[int, AnyExample]]:
        number = 0
        for line, example in _read_examples(config, report):
            if config.last and line > config.last:
                break
            if line < config.first:
                continue
            if example is None:
                report.left_out[without] += 1
            elif len(example.gold) + len(example.distractors) < config.min_docs:
                report.left_out[f"with fewer than {config.min_docs} documents"] += 1
            else:
                number += 1
                yield line, example
        if not number:
            why = f"no examples to import in lines {config.first} to {config.last or 'the end'}"
            raise PosgapError(f"{config.input}: {'; '.join([why, *report.summary_lines()])}")

    # One at a time, so that memory stays flat however long the file is.
    imported = write_examples(file, (example for _, example in with_unique_ids(config.input, usable())))
    report.log_summary(str(config.input))
    return f"imported {format_count(imported, 'example')} from {config.input}"


def _read_examples(config: ImportConfig, report: ImportReport) -> Iterator[tuple[int, AnyExample | None]]:
    """Yields (line, example) of the file, None for what its format leaves out; a log's counts go to `report`."""
    path = config.input
    if config.format in ("litm-kv", "litm-qa") and kind_of_table(path):
        raise PosgapError(
            f"{path}: a table, which is not in the format {config.format}: give --format rag for a retrieval "
            "log, or another one (docs/formats.md)"
        )
    if config.format == "litm-kv":
        return read_litm_kv(path, config.key_digits, config.value_digits)
    if config.format != "rag":
        return _READERS[config.format](path)
    log = RetrievalLog(str(path), {}, config.relevant, config.order, config.columns)
    log = log.labelled_by(config.answers) if config.answers else log
    examples = log.examples(read_rows(path), report)
    return without_answering(examples, report) if config.answering == "drop" else examples
