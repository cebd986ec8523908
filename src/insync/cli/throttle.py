"""`insync throttle`: hold a bootstrapping broker back until it has caught up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated, Final

import typer

from insync.cli import move_view, quantities, reassign_lines, reassign_plan
from insync.cli.admin import BootstrapServer, CommandConfig, ask
from insync.cli.answer import Answer, JsonFlag, WrongUsage
from insync.cli.reassign_do import Told, ended_data, monotonic_ms, problems_text
from insync.client.admin import Admin
from insync.moves import bootstrap as bootstrapping
from insync.moves import cluster as clusters
from insync.moves import measure, planning
from insync.moves.bootstrap import Outcome, Watching
from insync.moves.cluster import ClusterNow
from insync.moves.journal import JournalFile, state_directory
from insync.moves.measure import CannotMeasure
from insync.moves.planning import Outlook
from insync.moves.progress import rate_text, size_text
from insync.rules.refusals import Refusal
from insync.rules.values import BrokerId

WORDS: Final = {
    Outcome.CAUGHT_UP: "has caught up",
    Outcome.STOPPED: "has NOT caught up",
    Outcome.GIVEN_UP: "is down and has NOT caught up; start it, and run this again",
}


def register(on: typer.Typer) -> None:
    on.command("throttle")(throttle)


def throttle(
    bootstrap_server: BootstrapServer,
    command_config: CommandConfig = None,
    *,
    broker: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="The broker's id.")],
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Until all its replicas are in sync.")
    ] = False,
    throttle: Annotated[
        str,
        typer.Option(
            "--throttle", "--replication-quota", metavar="B/s", help="The most it may take."
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also when more than that comes in.")
    ] = False,
    measure_for: Annotated[
        str, typer.Option(metavar="10s", help="How long to measure what comes in.")
    ] = "10s",
    stuck_after: Annotated[
        str, typer.Option(metavar="30s", help="Say so when the lag stops falling so long.")
    ] = "30s",
    timeout: Annotated[
        str | None,
        typer.Option(metavar="MS", help="Give up when the broker is down so long; else wait."),
    ] = None,
    as_json: JsonFlag = False,
) -> Answer:
    """Throttle a broker that fills itself anew, watch it, and take the throttle away again."""
    if not bootstrap:
        raise WrongUsage("give --bootstrap: a throttle lasts until the broker has caught up")
    bytes_per_s = quantities.rate(throttle, flag="--throttle")
    measure_s = quantities.seconds(measure_for, flag="--measure-for")
    patience_ms = 1_000 * quantities.seconds(stuck_after, flag="--stuck-after")
    timeout_ms = None if timeout is None else quantities.milliseconds(timeout, flag="--timeout")

    async def run(admin: Admin) -> Told:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _this_task().cancel)
        cluster = await clusters.look(admin)
        number = BrokerId(broker)
        if not force and not as_json:
            sys.stderr.write(f"insync: measuring what comes in for {measure_s} s\n")
        estimated = await _estimated(
            admin, cluster, number, bytes_per_s, measure_s=None if force else measure_s
        )
        if not as_json:
            sys.stdout.write(estimated.text)
            sys.stdout.flush()
        with move_view.screen(as_json=as_json) as screen:
            outcome, ended = await bootstrapping.bootstrap(
                admin,
                JournalFile(state_directory(os.environ), cluster.cluster_id),
                cluster,
                number,
                bytes_per_s=bytes_per_s,
                watching=Watching(
                    show=screen.show,
                    complain=screen.complain,
                    clock_ms=monotonic_ms,
                    patience_ms=patience_ms,
                    gives_up_after_ms=timeout_ms,
                ),
            )
        has_caught_up = outcome is Outcome.CAUGHT_UP
        return Told(
            data={
                "broker": broker,
                "estimate": estimated.data,
                "caught_up": has_caught_up,
                **ended_data(ended),
            },
            text=f"Broker {broker} {WORDS[outcome]}.\n"
            + reassign_lines.cleared(ended)
            + problems_text(ended),
            exit_code=0 if has_caught_up and not ended.problems else 1,
        )

    try:
        told = ask(bootstrap_server, command_config, run)
    except asyncio.CancelledError:
        raise Refusal("stopped before the throttle was set") from None
    return Answer(data=told.data, view=told.text, as_json=as_json, exit_code=told.exit_code)


async def _estimated(
    admin: Admin,
    cluster: ClusterNow,
    broker: BrokerId,
    bytes_per_s: int,
    *,
    measure_s: int | None,
) -> Told:
    """Refused when it would never end; with nothing to measure for, it is only estimated."""
    copies = bootstrapping.copies_of(cluster, broker)
    if measure_s is None:
        try:
            measured = await measure.sizes_only(admin, cluster)
        except CannotMeasure:
            return Told(data=None, text="")
    else:
        measured = await measure.measure(admin, cluster, for_s=measure_s, clock_ms=monotonic_ms)
    seen = bootstrapping.outlook_of(cluster, copies, broker, measured)
    if measure_s is not None:
        planning.check_safe(seen, bytes_per_s)
    return estimate(seen, broker, bytes_per_s, is_without_inbound=measure_s is None)


def estimate(
    seen: Outlook, broker: BrokerId, bytes_per_s: int, *, is_without_inbound: bool
) -> Told:
    """How much there is to copy, and how long that takes."""
    time_ms = seen.time_ms(bytes_per_s)
    beside = "what comes in not counted" if is_without_inbound else "less what comes in"
    return Told(
        data={
            "throttle_bytes_per_s": bytes_per_s,
            "bytes_to_copy": seen.bytes_to_move,
            "brokers": reassign_plan.loads_data(seen),
            "time_ms": time_ms,
        },
        text=f"{reassign_plan.loads_table(seen, [bytes_per_s])}"
        f"Broker {broker} lacks {size_text(seen.bytes_to_move)}: at {rate_text(bytes_per_s)}, "
        f"{beside}, this takes {reassign_plan.time_text(time_ms)}\n",
    )


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "we run in one"
    return task
