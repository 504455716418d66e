"""What the site has beside the files of docs/: a page of all commands, and links to files outside of docs/."""

import re
from inspect import cleandoc

import click
from mkdocs.structure.files import File, Files

from posgap.cli.main import build

_OUTSIDE = re.compile(r"\]\(\.\./([^)]+)\)")
_LEAD = """# Commands

Every command with its options and their defaults, as `--help` prints them. The entry points of the MLproject, the
components of the pipeline and the functions in Python have the same names.
"""


def on_files(files: Files, config) -> Files:
    files.append(File.generated(config, "commands.md", content="\n".join([_LEAD, *_sections(build(), "posgap", None)])))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    return _OUTSIDE.sub(rf"]({config.repo_url}/blob/main/\1)", markdown)


def _sections(command: click.Command, name: str, parent: click.Context | None):
    """The section of a command and of all below it, whose options are a list of definitions: a phone can show that."""
    context = click.Context(command, info_name=name.rsplit(" ")[-1], parent=parent)
    if parent:
        text = [cleandoc(part) for part in (command.help, command.epilog) if part]
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield "\n\n".join([f"{'###' if parent.parent else '##'} {name}", f"`{usage}`", *text, ""])
        for option in filter(None, (each.get_help_record(context) for each in command.get_params(context))):
            yield "`{}`\n:   {}\n".format(*option)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _sections(command.get_command(context, each), f"{name} {each}", context)


def on_post_page(output: str, page, config) -> str:
    # Material would ask GitHub for the repository's stars whenever a page is opened.
    return output.replace('data-md-component="source"', "")
