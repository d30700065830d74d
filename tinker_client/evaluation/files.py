"""A report as files: tables, pictures and the page."""

from pathlib import Path

from tinker_client.errors import UserError
from tinker_client.evaluation.figures import pictures
from tinker_client.evaluation.page import write_page
from tinker_client.evaluation.render import to_csv, to_markdown
from tinker_client.evaluation.scope import Scope
from tinker_client.evaluation.tables import tables


def write_report(what: Scope, folder: Path) -> None:
    """Write tables.md, a CSV file a table, the pictures and report.html into `folder`, replacing older ones.

    Raises UserError if the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shown = tables(what)
        (folder / "tables.md").write_text(to_markdown(shown), encoding="utf-8")
        for table in shown:
            (folder / f"{table.key}.csv").write_text(to_csv(table), encoding="utf-8")
        drawn = pictures(what)
        for picture in drawn:
            (folder / f"{picture.key}.png").write_bytes(picture.encode("png"))
            (folder / f"{picture.key}.svg").write_bytes(picture.encode("svg"))
        write_page(what, shown, drawn, folder / "report.html")
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): give another --out") from error
