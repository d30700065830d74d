"""Tables on a terminal, as Markdown, as CSV and as HTML."""

import csv
import html
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import rich.table
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from tinker_client.evaluation.statistics import Interval
from tinker_client.evaluation.tables import Cell, Column, Row, Table

POST = "post"


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Each table, every group of it under a heading of its own."""
    for table in tables:
        console.print(f"[bold]{escape(table.title)}[/]")
        for heading, rows in _groups(table):
            columns = table.columns[table.groups :]
            shown = rich.table.Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
            for number, column in enumerate(columns):
                whole = number == 0 or _is_interval(table, table.groups + number) or " " not in column.name
                justify: Literal["left", "right"] = "right" if number and not column.long else "left"
                whole = whole and not column.long
                shown.add_column(escape(column.name), justify=justify, no_wrap=whole, overflow="fold")
            for row in rows:
                shown.add_row(*(Text(text) for text in _texts(row.cells, table)[table.groups :]))
                if row.post is not None:
                    shown.add_row(*(Text(text) for text in _post_texts(row, table)[table.groups :]), style="dim")
            if heading:
                console.print(heading, markup=False, highlight=False, soft_wrap=True)
            console.print(shown)
            console.print()
        console.print(f"{table.note}\n", style="dim", markup=False, highlight=False)


def to_markdown(tables: Sequence[Table]) -> str:
    """One section a table, all of whose columns are written out."""
    lines: list[str] = []
    for table in tables:
        header = [column.name for column in table.columns]
        lines += [f"## {table.title}", "", _markdown_row(header), _markdown_row("---" for _ in header)]
        for row in table.rows:
            lines.append(_markdown_row(_texts(row.cells, table)))
            if row.post is not None:
                lines.append(_markdown_row(_post_texts(row, table)))
        lines += ["", table.note, ""]
    return "\n".join(lines)


def to_csv(table: Table) -> str:
    """One table with all digits; an interval takes three columns, and `source` tells ours from the post's."""
    wide = [_is_interval(table, number) for number in range(len(table.columns))]
    header = [
        name
        for column, interval in zip(table.columns, wide, strict=True)
        for name in ([column.name, f"{column.name} low", f"{column.name} high"] if interval else [column.name])
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["source", *header])
    for row in table.rows:
        writer.writerow(["measured", *_csv_cells(row.cells, wide)])
        if row.post is not None:
            named = (*row.cells[: table.groups + 1], *row.post[table.groups + 1 :])
            writer.writerow([POST, *_csv_cells(named, wide)])
    return out.getvalue()


def to_html(table: Table) -> str:
    """One table as HTML, everything in it escaped."""
    parts = [f"<h2>{html.escape(table.title)}</h2>"]
    columns = table.columns[table.groups :]
    head = "".join(f"<th>{html.escape(column.name)}</th>" for column in columns)
    for heading, rows in _groups(table):
        body = []
        for row in rows:
            body.append(_html_row(_texts(row.cells, table)[table.groups :]))
            if row.post is not None:
                body.append(_html_row(_post_texts(row, table)[table.groups :], ' class="post"'))
        caption = f"<caption>{html.escape(heading)}</caption>" if heading else ""
        parts.append(f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>")
    parts.append(f'<p class="note">{html.escape(table.note)}</p>')
    return "\n".join(parts)


def _groups(table: Table) -> Iterator[tuple[str, list[Row]]]:
    for group, rows in groupby(table.rows, key=lambda row: row.cells[: table.groups]):
        texts = [_text(cell, column) for cell, column in zip(group, table.columns, strict=False)]
        names = [column.name for column in table.columns[: table.groups]]
        yield ", ".join(f"{name} {text}" for name, text in zip(names, texts, strict=True) if text), list(rows)


def _texts(cells: Sequence[Cell], table: Table) -> list[str]:
    return [_text(cell, column) for cell, column in zip(cells, table.columns, strict=True)]


def _post_texts(row: Row, table: Table) -> list[str]:
    """The post's row: the same group, its source in place of the model's name, and its numbers."""
    assert row.post is not None
    texts = _texts((*row.cells[: table.groups], None, *row.post[table.groups + 1 :]), table)
    texts[table.groups] = f"  {POST}"
    return texts


def _text(cell: Cell, column: Column) -> str:
    match cell:
        case None:
            return ""
        case str():
            return cell
        case Interval(value, low, high):
            if math.isnan(value):
                return "-"
            bounds = f" [{low:{column.format}}, {high:{column.format}}]" if math.isfinite(low) else ""
            return f"{value:{column.format}}{bounds}"
        case _:
            if math.isnan(cell):
                return "-"
            return f"{cell:{column.format}}"


def _is_interval(table: Table, number: int) -> bool:
    return any(isinstance(row.cells[number], Interval) for row in table.rows)


def _csv_cells(cells: Sequence[Cell], wide: Sequence[bool]) -> list[str | int | float | None]:
    values: list[str | int | float | None] = []
    for cell, interval in zip(cells, wide, strict=True):
        if isinstance(cell, Interval):
            values += [cell.value, cell.low, cell.high]
        else:
            values += [cell, None, None] if interval else [cell]
    return values


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |"


def _html_row(texts: Sequence[str], attributes: str = "") -> str:
    return f"<tr{attributes}>" + "".join(f"<td>{html.escape(text)}</td>" for text in texts) + "</tr>"
