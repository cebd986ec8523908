"""The pipeline's tables as one page: a self-contained HTML file that needs no network.

`points` has Spark cut every table down to what a chart can show, so that the page stays small
whatever the record; `page` makes HTML of that, with `page.css` and `page.js` inside.
"""

from insync.pipeline.report.page import PAGE_BYTES_MAX, render
from insync.pipeline.report.points import Tables, collect

__all__ = ["PAGE_BYTES_MAX", "Tables", "collect", "render", "report"]


def report(
    tables: Tables, *, title: str = "Replication report", recommendation: str | None = None
) -> str:
    """The page; a missing table is replaced by a note."""
    return render(collect(tables), title=title, recommendation=recommendation)
