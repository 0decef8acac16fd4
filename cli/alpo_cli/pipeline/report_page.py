"""The page: one file, with its style in it, that fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_STYLE = """
body { font: 15px/1.45 system-ui, "Helvetica Neue", Arial, sans-serif; color: #222; background: #fff;
       max-width: 960px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: 0.8em 0; font-size: 0.93em; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.8em 0.2em 0; text-align: right; vertical-align: top; border-bottom: 1px solid #eee; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
figure { margin: 0.8em 0; } figure svg { width: 100%; height: auto; }
p.note { color: #555; } code { font-size: 0.92em; }
"""


@dataclass
class Section:
    """``parts``: HTML."""

    title: str
    parts: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.parts.append(f'<p class="note">{escape(text)}</p>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> None:
        """The first ``text`` columns are text."""
        def line(cells: Sequence[str], tag: str) -> str:
            drawn = (
                f"<{tag}{' class=text' if at < text else ''}>{escape(cell)}</{tag}>" for at, cell in enumerate(cells)
            )
            return f"<tr>{''.join(drawn)}</tr>"

        body = "".join(line(row, "td") for row in rows)
        self.parts.append(f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>")


def page(title: str, made: str, sections: Sequence[Section]) -> str:
    """The file's text."""
    body = "".join(f"<section><h2>{escape(one.title)}</h2>{''.join(one.parts)}</section>\n" for one in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>"
        f'<p class="note">{escape(made)}</p>\n{body}</body></html>\n'
    )
