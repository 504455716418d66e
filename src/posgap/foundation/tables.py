"""Tables in Markdown."""

from collections.abc import Sequence

from posgap.foundation.printing import printable


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Returns a Markdown table with aligned source: the first `left` columns to the left, the others to the right."""
    columns = []
    rules = []
    for number, column in enumerate(zip(head, *rows, strict=True)):
        cells = [printable(cell) for cell in column]
        width = max(map(len, cells))
        columns.append([cell.ljust(width) if number < left else cell.rjust(width) for cell in cells])
        rules.append("-" * (width + 2) if number < left else "-" * (width + 1) + ":")
    first, *others = [f"| {' | '.join(cells)} |" for cells in zip(*columns)]
    return "\n".join([first, f"|{'|'.join(rules)}|", *others])
