"""`insync throttle`: throttle a broker that rebuilds its replicas until it has caught up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated, Final

import typer

from insync.cli import move_view, quantities, reassign_lines, reassign_plan
from insync.cli.admin import BootstrapServer, CommandConfig, ask
from insync.cli.answer import INTERRUPTED, Answer, JsonFlag, WrongUsage
from insync.cli.reassign_do import (
    CLOCKS,
    CommandResult,
    ended_data,
    monotonic_ms,
    pause_announced,
    problems_text,
)
from insync.client.admin import Admin
from insync.moves import bootstrap as bootstrapping
from insync.moves import cluster as clusters
from insync.moves import measure, planning
from insync.moves.bootstrap import Outcome, WatchOptions
from insync.moves.cluster import ClusterNow
from insync.moves.journal import JournalFile, state_directory
from insync.moves.measure import CannotMeasure, Measured
from insync.moves.planning import PlanEstimate
from insync.moves.progress import rate_text, size_text
from insync.moves.size_samples import SampleFile
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
    broker: Annotated[
        int,
        typer.Option(
            metavar="ID", min=0, max=2**31 - 1, help="Id of the broker that rebuilds its replicas."
        ),
    ],
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap", help="Keep the throttle until all its replicas are in sync; required."
        ),
    ] = False,
    throttle: Annotated[
        str,
        typer.Option(
            "--throttle",
            "--replication-quota",
            metavar="B/s",
            help="Throttle in bytes per second, for example 10MB. MB = 10^6 bytes; MiB is "
            "accepted.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Set the throttle even if clients write faster than it.")
    ] = False,
    measure_for: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Measure for this time what clients write, also where the brokers report it.",
            show_default="what the brokers report of the last 10s; on Apache Kafka for 10s",
        ),
    ] = None,
    stuck_after: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Report the broker as stuck after this time without a lower lag."
        ),
    ] = "30s",
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="MS",
            help="Give up when the broker has been down for this time.",
            show_default="no limit",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> Answer:
    """Throttle a broker that rebuilds its replicas, watch it, and remove the throttle again."""
    if not bootstrap:
        raise WrongUsage("give --bootstrap: a throttle lasts until the broker has caught up")
    bytes_per_s = quantities.rate(throttle, flag="--throttle")
    measure_s = (
        None if measure_for is None else quantities.seconds(measure_for, flag="--measure-for")
    )
    patience_ms = 1_000 * quantities.seconds(stuck_after, flag="--stuck-after")
    timeout_ms = None if timeout is None else quantities.milliseconds(timeout, flag="--timeout")

    is_terminated = False

    def terminate(task: asyncio.Task[object]) -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    async def run(admin: Admin) -> CommandResult:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, terminate, _this_task())
        cluster = await clusters.read_cluster(admin)
        number = BrokerId(broker)
        folder = state_directory(os.environ)
        estimated = CommandResult(data=None, text="")

        async def check() -> None:
            nonlocal estimated
            estimated = await _estimate_checked(
                admin,
                cluster,
                number,
                bytes_per_s,
                measure_s=measure_s,
                samples=SampleFile(folder, cluster.cluster_id, CLOCKS),
                is_forced=force,
                as_json=as_json,
            )
            if not as_json:
                sys.stdout.write(estimated.text)
                sys.stdout.flush()

        with move_view.progress_display(as_json=as_json) as display:
            outcome, ended = await bootstrapping.bootstrap(
                admin,
                JournalFile(folder, cluster.cluster_id),
                cluster,
                number,
                bytes_per_s=bytes_per_s,
                watching=WatchOptions(
                    show=display.show,
                    warn=display.warn,
                    clock_ms=monotonic_ms,
                    stuck_after_ms=patience_ms,
                    gives_up_after_ms=timeout_ms,
                ),
                check=check,
            )
        has_caught_up = outcome is Outcome.CAUGHT_UP
        is_interrupted = outcome is Outcome.STOPPED and not is_terminated
        failed = INTERRUPTED if is_interrupted else 1
        return CommandResult(
            data={
                "broker": broker,
                "estimate": estimated.data,
                "caught_up": has_caught_up,
                **ended_data(ended),
            },
            text=f"Broker {broker} {WORDS[outcome]}.\n"
            + reassign_lines.cleared(ended)
            + problems_text(ended),
            exit_code=0 if has_caught_up and not ended.problems else failed,
        )

    try:
        result = ask(bootstrap_server, command_config, run)
    except asyncio.CancelledError:
        raise Refusal("stopped before the throttle was set") from None
    return Answer(data=result.data, view=result.text, as_json=as_json, exit_code=result.exit_code)


async def _estimate_checked(
    admin: Admin,
    cluster: ClusterNow,
    broker: BrokerId,
    bytes_per_s: int,
    *,
    measure_s: int | None,
    samples: SampleFile,
    is_forced: bool,
    as_json: bool,
) -> CommandResult:
    """Refused when it would never end; with --force only estimated."""
    copies = bootstrapping.copies_of(cluster, broker)
    if is_forced:
        try:
            measured = await measure.sizes_only(admin, cluster, None)
        except CannotMeasure:
            return CommandResult(data=None, text="")
        rebuild = bootstrapping.estimate_rebuild(cluster, copies, broker, measured)
        return estimate(rebuild, broker, bytes_per_s, is_without_inbound=True)

    def estimate_safe(measured: Measured) -> PlanEstimate:
        rebuild = bootstrapping.estimate_rebuild(cluster, copies, broker, measured)
        planning.check_safe(rebuild, bytes_per_s)
        return rebuild

    rebuild = await measure.measure_and_check(
        admin,
        cluster,
        for_s=measure_s,
        samples=samples,
        check=estimate_safe,
        pause=asyncio.sleep if as_json else pause_announced,
    )
    return estimate(rebuild, broker, bytes_per_s, is_without_inbound=False)


def estimate(
    rebuild: PlanEstimate, broker: BrokerId, bytes_per_s: int, *, is_without_inbound: bool
) -> CommandResult:
    """How many bytes to copy, and how long that takes."""
    time_ms = rebuild.time_ms(bytes_per_s)
    beside = "what comes in not counted" if is_without_inbound else "less what comes in"
    return CommandResult(
        data={
            "throttle_bytes_per_s": bytes_per_s,
            "bytes_to_copy": rebuild.bytes_to_move,
            "brokers": reassign_plan.loads_data(rebuild),
            "time_ms": time_ms,
        },
        text=f"{reassign_plan.loads_table(rebuild, [bytes_per_s])}"
        f"Broker {broker} lacks {size_text(rebuild.bytes_to_move)}: at {rate_text(bytes_per_s)}, "
        f"{beside}, this takes {reassign_plan.time_text(time_ms)}\n",
    )


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "we run in one"
    return task
