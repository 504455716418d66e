"""What the site has beside the files of docs/: a page of all commands, and links to files outside of docs/."""

import re

import click
from mkdocs.structure.files import File, Files

from posgap.cli import build

_OUTSIDE = re.compile(r"\]\(\.\./([^)]+)\)")
_LEAD = """# Commands

Every command with its options and their defaults, as `--help` prints them. The same names are those of the
MLproject's entry points, of the pipeline's components and of the Python functions.
"""


def on_files(files: Files, config) -> Files:
    files.append(File.generated(config, "commands.md", content="\n".join([_LEAD, *_sections(build(), "posgap", None)])))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    return _OUTSIDE.sub(rf"]({config.repo_url}/blob/main/\1)", markdown)


def _sections(command: click.Command, name: str, parent: click.Context | None):
    """The section of a command and of all below it, groups first by their own help."""
    context = click.Context(command, info_name=name.rsplit(" ")[-1], parent=parent, max_content_width=100)
    if parent:
        yield f"{'###' if parent.parent else '##'} {name}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _sections(command.get_command(context, each), f"{name} {each}", context)
