"""Hooks of the site: a page of all commands beside the files of docs/, and links that lead outside of it."""

import re
import tomllib
from inspect import cleandoc
from pathlib import Path

import click
from mkdocs.structure.files import File, Files

from posgap.cli.main import build

_ROOT = Path(__file__).resolve().parents[1]
_OUTSIDE = re.compile(r"\[([^]]+)\]\(\.\./([^)]+)\)")
_LEAD = """# Commands

Every command with its options and their defaults, as `--help` prints them. The entry points of the MLproject, the
components of the pipeline and the functions in Python have the same names.
"""


def on_files(files: Files, config) -> Files:
    files.append(File.generated(config, "commands.md", content="\n".join([_LEAD, *_sections(build(), "posgap", None)])))
    return files


def on_page_markdown(text: str, page, config, files) -> str:
    return outside(text, config.repo_url)


def on_config(config):
    """The repository's address is that of the package; without one the site has no link to it."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    config.repo_url = project["tool"]["posgap"]["repository"].rstrip("/") or None
    return config


def outside(text: str, repository: str | None) -> str:
    """A page whose links out of docs/ lead into the repository; where that has no address, it names the files."""
    if not repository:
        return _OUTSIDE.sub(_named, text)
    return _OUTSIDE.sub(rf"[\1]({repository}/blob/main/\2)", text)


def _named(link: re.Match[str]) -> str:
    """A link's words and, unless they are its name, the file that it leads to."""
    words, file = link[1], link[2].partition("#")[0]
    return words if words.strip("`/") == file.strip("/") else f"{words} (`{file}`)"


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
