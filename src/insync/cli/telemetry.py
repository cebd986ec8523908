"""`insync telemetry`: what the brokers recorded, as files for the pipeline."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insync.cli.admin import BootstrapServer, CommandConfig, ask, client_of
from insync.cli.answer import Answer, JsonFlag
from insync.client.admin import Admin
from insync.client.admin_connections import parse_bootstrap
from insync.client.connection import Network
from insync.client.partition_client import PartitionClient, Refused
from insync.rules.refusals import Refusal
from insync.telemetry.schemas import TABLES, TELEMETRY_TOPIC

if TYPE_CHECKING:
    from insync.telemetry.collection import Collection

READ_BYTES = 4 << 20
READ_WITHIN_S = 30.0  # one read, with its retries
READ_ATTEMPTS_MAX, RETRY_S = 50, 0.1
LINES_MAX = 20  # about corrupt blocks, on stderr

app = typer.Typer(help="Telemetry that the brokers recorded.")


def register(on: typer.Typer) -> None:
    on.add_typer(app, name="telemetry")


class ExportFailed(Refusal):
    """Telemetry that cannot be read, or not be written to --out."""


@app.callback()
def group() -> None:
    """Telemetry that the brokers recorded."""


@app.command()
def export(
    bootstrap_server: BootstrapServer,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="The folder to write to; one folder per table in it."
        ),
    ],
    command_config: CommandConfig = None,
    *,
    as_json: JsonFlag = False,
) -> Answer:
    """Write the telemetry of a cluster as Parquet: DIR/fetches/*.parquet and so on."""
    _check_pyarrow()
    partitions = ask(bootstrap_server, command_config, _partitions)
    _prepare(out)
    network = client_of(command_config).network
    summary = Summary()
    for number in partitions:
        _show_progress(
            f"reading partition {number + 1} of {len(partitions)}: {summary.blocks} blocks so far"
        )
        collection = asyncio.run(_collect(network, bootstrap_server, number))
        summary.add(number, collection)
        _write(out, number, collection)
    _show_progress("")
    for number, offset, why in summary.corrupt[:LINES_MAX]:
        sys.stderr.write(f"insync: {TELEMETRY_TOPIC}-{number} offset {offset}: {why}; skipped\n")
    # As with `insync replicas`: a result that is not complete is written, and is no success.
    code = 1 if summary.corrupt_count else 0
    return Answer(data=summary.data(out), view=summary.text(out), as_json=as_json, exit_code=code)


class Summary:
    """Counts of all partitions together."""

    def __init__(self) -> None:
        self.blocks = self.repeated = self.corrupt_count = 0
        self.rows = dict.fromkeys(TABLES, 0)
        self.corrupt: list[tuple[int, int, str]] = []
        self._drops: dict[tuple[int, int], Counter[str]] = {}

    def add(self, number: int, collection: Collection) -> None:
        self.blocks += collection.blocks
        self.repeated += collection.repeated
        self.corrupt_count += collection.corrupt
        self.corrupt += [(number, offset, why) for offset, why in collection.reports]
        for name, blocks in collection.tables.items():
            self.rows[name] += sum(block.num_rows for block in blocks)
        for run, drops in collection.drops.items():
            self._drops[run] = self._drops.get(run, Counter()) | drops

    @property
    def dropped(self) -> dict[str, int]:
        total = sum(self._drops.values(), Counter())
        return {name: total[name] for name in TABLES}

    def data(self, out: Path) -> dict[str, object]:
        return {
            "out": str(out),
            "blocks": self.blocks,
            "repeated_blocks": self.repeated,
            "complete": self.corrupt_count == 0,
            "corrupt_blocks": self.corrupt_count,
            "corrupt": [
                {"partition": number, "offset": offset, "reason": why}
                for number, offset, why in self.corrupt
            ],
            "rows": self.rows,
            "dropped_rows": self.dropped,
        }

    def text(self, out: Path) -> str:
        lines = [f"{name}\t{count} rows" for name, count in self.rows.items()]
        lines += [f"dropped\t{n} rows of {name}" for name, n in self.dropped.items() if n]
        lines += [f"corrupt\t{self.corrupt_count} blocks skipped"] if self.corrupt_count else []
        return "\n".join([*lines, f"written to {out}", ""])


def _check_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415 - 60 MB that no other command needs
    except ImportError:
        raise ExportFailed(
            'this needs pyarrow: install it with pip install "insync[parquet]"'
        ) from None


async def _partitions(admin: Admin) -> list[int]:
    topics = {topic.name: topic for topic in await admin.topics()}
    if TELEMETRY_TOPIC not in topics:
        raise ExportFailed(
            f"the cluster has no {TELEMETRY_TOPIC}: its brokers are not Insync's, have "
            "telemetry.enable=false, or have led nothing yet"
        )
    return sorted(partition.number for partition in topics[TELEMETRY_TOPIC].partitions)


def _prepare(out: Path) -> None:
    """Refuses to overwrite an earlier export."""
    try:
        for name in TABLES:
            folder = out / name
            if folder.is_dir() and any(folder.iterdir()):
                raise ExportFailed(f"{folder} is not empty; choose another --out")
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportFailed(f"cannot use {out}: {error.strerror}") from None


async def _collect(network: Network, bootstrap: str, number: int) -> Collection:
    from insync.telemetry.collection import Collection  # noqa: PLC0415 - brings pyarrow

    collection = Collection()
    client = PartitionClient(network, parse_bootstrap(bootstrap), TELEMETRY_TOPIC, number)
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            offset, end = await client.bounds()  # what is written later is left out
        while offset < end:
            async with asyncio.timeout(READ_WITHIN_S):
                offset = await _read_batches(client, number, offset, end, collection)
    except (TimeoutError, Refused) as error:
        why = f"no broker answers for it within {READ_WITHIN_S:.0f} s"
        text = why if isinstance(error, TimeoutError) else str(error)
        raise ExportFailed(f"cannot read {TELEMETRY_TOPIC}-{number}: {text}") from None
    finally:
        await client.close()
    return collection


async def _read_batches(
    client: PartitionClient, number: int, offset: int, end: int, collection: Collection
) -> int:
    """Returns the offset to continue at."""
    ends = 0
    for _ in range(READ_ATTEMPTS_MAX):
        batches = await client.read_batches(offset, max_bytes=READ_BYTES, from_start=True)
        begins = max(offset, batches.log_start)  # retention may have removed older ones
        after = collection.take(batches.records or b"", offset=begins)
        if after > offset:
            return after
        ends = batches.high_watermark
        if ends >= end:
            raise ExportFailed(f"{TELEMETRY_TOPIC}-{number} has no batch at offset {offset}")
        await asyncio.sleep(RETRY_S)  # a new leader does not know yet what is committed
    raise ExportFailed(
        f"{TELEMETRY_TOPIC}-{number} ends at {ends}, before {end} where it ended when this "
        "began: the topic was created again, or its leader lost committed records"
    )


def _write(out: Path, number: int, collection: Collection) -> None:
    """One file per table and partition of the telemetry topic."""
    from insync.telemetry.tables import write_parquet  # noqa: PLC0415 - takes pyarrow

    try:
        for name in TABLES:
            write_parquet(collection.joined(name), out / name / f"part-{number:05d}.parquet")
    except OSError as error:
        raise ExportFailed(f"cannot write to {out}: {error.strerror or error}") from None


def _show_progress(text: str) -> None:
    """Progress, on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
