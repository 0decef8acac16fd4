"""What mkdocs does besides: shell blocks say that they are ones, and their colours are made here, not fetched."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

#: The first line of an indented block: a prompt, or a command that somebody types.
_PROMPT = re.compile(r"(?<=\n\n)    (?=\$ )")
_COMMAND = re.compile(r"(?<=\n\n)    (?=(alpo|alpod|alpo-\w+|curl|install|kubectl|make|pip|podman|python3?|systemctl"
                      r"|export|set|\S*/bin/\S+)[ \n])")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with the language of each indented shell block in a line of its own, which is not shown."""
    return _COMMAND.sub("    :::sh\n    ", _PROMPT.sub("    :::console\n    ", markdown))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, and the colours of code in both schemes."""
    for scheme, style in (("light", "friendly"), ("dark", "github-dark")):
        colours = HtmlFormatter(style=style, cssclass="codehilite").get_style_defs()
        files.append(File.generated(config, f"css/code-{scheme}.css", content=colours))
    return files
