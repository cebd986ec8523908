"""`insync reassign`: kafka-reassign-partitions' flags, JSON and lines, and what it lacks.

On our brokers and on Apache Kafka's. What it does is in `insync.moves`; here are flags and words.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from insync.cli import quantities
from insync.cli.admin import BootstrapServer, CommandConfig, ask
from insync.cli.answer import Answer, JsonFlag, WrongUsage
from insync.cli.reassign_do import Asked, Told, execute, status
from insync.cli.reassign_end import cancel, sweep, verify
from insync.cli.reassign_plan import generate, plan
from insync.client.admin import Admin
from insync.moves.journal import state_directory
from insync.moves.plan_file import Plan, names_directories, parse_plan, parse_topics, read_text
from insync.rules.refusals import BadPlan, BadSetting

TIMEOUT_MS: Final = 10_000
STUCK_AFTER_S: Final = 30
NO_THROTTLE: Final = "-1"


@dataclass(frozen=True, slots=True)
class _Action:
    """What one of the actions needs and may have."""

    do: Callable[[Admin, Asked], Awaitable[Told]]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


FILE: Final = "--reassignment-json-file"
ACTIONS: Final[Mapping[str, _Action]] = {
    "--generate": _Action(
        generate, ("--topics-to-move-json-file", "--broker-list"), ("--disable-rack-aware",)
    ),
    "--plan": _Action(
        plan,
        (),
        ("--throttle", "--finish-in", "--network", "--max-impact", "--measure-for"),
    ),
    "--execute": _Action(
        execute,
        (FILE,),
        (
            "--throttle",
            "--additional",
            "--timeout",
            "--force",
            "--watch",
            "--no-watch",
            "--network",
            "--measure-for",
            "--stuck-after",
        ),
    ),
    "--verify": _Action(verify, (FILE,), ("--preserve-throttles",)),
    "--cancel": _Action(cancel, (FILE,), ("--preserve-throttles", "--timeout")),
    "--list": _Action(status),
    "--sweep": _Action(sweep, (), ("--force",)),
}
WATCH_ALONE: Final = _Action(execute, (), (FILE, "--stuck-after", "--timeout", "--watch"))


def register(on: typer.Typer) -> None:
    on.command("reassign")(reassign)


def reassign(
    bootstrap_server: BootstrapServer,
    command_config: CommandConfig = None,
    *,
    generate: Annotated[
        bool, typer.Option("--generate", help="Propose a balanced plan that moves the least.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="What this plan moves, how long, how safely."),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Start a plan.")] = False,
    watch: Annotated[
        bool | None,
        typer.Option(
            "--watch/--no-watch",
            help="Follow moves to their end and take the throttle away (default on a terminal).",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="How a plan stands; ends its throttle when done.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel a plan's moves.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show moves under way.")] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Take away throttles that were left behind.")
    ] = False,
    reassignment_json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The plan.")
    ] = None,
    topics_to_move_json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The topics to balance.")
    ] = None,
    broker_list: Annotated[
        str | None, typer.Option(metavar="ID,ID,...", help="The brokers to balance over.")
    ] = None,
    disable_rack_aware: Annotated[
        bool, typer.Option("--disable-rack-aware", help="Pay no attention to racks.")
    ] = False,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            "--replication-quota",
            metavar="B/s",
            help="The most that moving replicas may take on any broker, as 10000000 or 10MB.",
        ),
    ] = None,
    replica_alter_log_dirs_throttle: Annotated[
        str | None, typer.Option(metavar="B/s", help="Refused: nothing moves between directories.")
    ] = None,
    additional: Annotated[
        bool,
        typer.Option("--additional", help="Beside moves under way, or to change their throttle."),
    ] = False,
    preserve_throttles: Annotated[
        bool, typer.Option("--preserve-throttles", help="Leave throttles set.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="MS",
            help="How long the cluster may take to start, and --watch waits for a broker that is "
            "down (without a terminal: as long as --stuck-after).",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Execute outside the safe range; sweep all throttles.")
    ] = False,
    finish_in: Annotated[
        str | None, typer.Option(metavar="30m", help="Give the throttle that is done by then.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(metavar="1Gbit", help="The network of one broker.")
    ] = None,
    max_impact: Annotated[
        str | None, typer.Option(metavar="30%", help="How much of the network moves may take.")
    ] = None,
    measure_for: Annotated[
        str | None, typer.Option(metavar="10s", help="How long to measure what comes in.")
    ] = None,
    stuck_after: Annotated[
        str | None, typer.Option(metavar="30s", help="Say so when the lag stops falling so long.")
    ] = None,
    as_json: JsonFlag = False,
) -> Answer:
    """Move replicas under a throttle that never stays behind (kafka-reassign-partitions' flags)."""
    chosen = {
        "--generate": generate,
        "--plan": plan is not None,
        "--execute": execute,
        "--verify": verify,
        "--cancel": cancel,
        "--list": list_,
        "--sweep": sweep,
    }
    flags = {
        FILE: reassignment_json_file is not None,
        "--topics-to-move-json-file": topics_to_move_json_file is not None,
        "--broker-list": broker_list is not None,
        "--disable-rack-aware": disable_rack_aware,
        "--throttle": throttle is not None,
        "--additional": additional,
        "--preserve-throttles": preserve_throttles,
        "--timeout": timeout is not None,
        "--force": force,
        "--watch": watch is True,
        "--no-watch": watch is False,
        "--finish-in": finish_in is not None,
        "--network": network is not None,
        "--max-impact": max_impact is not None,
        "--measure-for": measure_for is not None,
        "--stuck-after": stuck_after is not None,
    }
    action = _chosen(chosen, flags)
    if replica_alter_log_dirs_throttle not in (None, NO_THROTTLE):
        raise BadSetting(
            "--replica-alter-log-dirs-throttle: insync moves replicas between brokers, not between "
            "directories of one; leave it out"
        )
    if max_impact is not None and network is None:
        raise WrongUsage("--max-impact is a part of the network; give --network too")
    timeout_ms = None if timeout is None else quantities.milliseconds(timeout, flag="--timeout")
    stuck_after_s = (
        STUCK_AFTER_S
        if stuck_after is None
        else quantities.seconds(stuck_after, flag="--stuck-after")
    )
    is_seen = sys.stdout.isatty() and not as_json
    asked = Asked(
        bootstrap=bootstrap_server,
        plan=_plan(plan or reassignment_json_file),
        topics=_topics(topics_to_move_json_file),
        brokers=_brokers(broker_list),
        is_rack_aware=not disable_rack_aware,
        throttle_bytes_per_s=_throttle(throttle),
        is_additional=additional,
        preserves_throttles=preserve_throttles,
        timeout_ms=timeout_ms or TIMEOUT_MS,
        force=force,
        starts=execute,
        watches=is_seen if watch is None else watch,
        finish_in_s=None
        if finish_in is None
        else quantities.seconds(finish_in, flag="--finish-in"),
        network_bytes_per_s=None
        if network is None
        else quantities.network(network, flag="--network"),
        max_impact=None if max_impact is None else quantities.part(max_impact, flag="--max-impact"),
        measure_s=10
        if measure_for is None
        else quantities.seconds(measure_for, flag="--measure-for"),
        stuck_after_s=stuck_after_s,
        gives_up_after_ms=gives_up_after_ms(timeout_ms, stuck_after_s, is_seen=is_seen),
        state_directory=state_directory(os.environ),
        as_json=as_json,
    )
    told = ask(bootstrap_server, command_config, lambda admin: action.do(admin, asked))
    return Answer(data=told.data, view=told.text, as_json=as_json, exit_code=told.exit_code)


def gives_up_after_ms(timeout_ms: int | None, stuck_after_s: int, *, is_seen: bool) -> int | None:
    """How long a broker that is down is waited for: a person who looks on decides that."""
    if timeout_ms is not None:
        return timeout_ms
    return None if is_seen else stuck_after_s * 1_000


def _chosen(chosen: Mapping[str, bool], flags: Mapping[str, bool]) -> _Action:
    """The one action, with flags that go with it."""
    given = [flag for flag, is_given in chosen.items() if is_given]
    if not given and flags["--watch"]:
        name, action = "--watch", WATCH_ALONE
    elif len(given) == 1:
        name, action = given[0], ACTIONS[given[0]]
    else:
        raise WrongUsage(f"give exactly one of {', '.join(ACTIONS)}, --watch")
    missing = [flag for flag in action.needs if not flags[flag]]
    if missing:
        raise WrongUsage(f"{name} needs {missing[0]}")
    allowed = {*action.needs, *action.takes}
    extra = [flag for flag, is_given in flags.items() if is_given and flag not in allowed]
    if extra:
        raise WrongUsage(f"{extra[0]} does not go with {name}")
    return action


def _plan(path: Path | None) -> Plan:
    if path is None:
        return {}
    try:
        text = read_text(path)
        found = parse_plan(text)
        if names_directories(text):
            sys.stderr.write("insync: log_dirs do not count: each broker chooses its own\n")
        return found
    except BadPlan as refusal:
        raise _of_file(path, refusal) from None


def _topics(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return parse_topics(read_text(path))
    except BadPlan as refusal:
        raise _of_file(path, refusal) from None


def _of_file(path: Path, refusal: BadPlan) -> BadPlan:
    text = str(refusal)
    return BadPlan(text if str(path) in text else f"{path}: {text}")


def _brokers(text: str | None) -> list[int]:
    if text is None:
        return []
    found = []
    for each in text.split(","):
        is_number = each.strip().isascii() and each.strip().isdecimal() and len(each.strip()) <= 10  # noqa: PLR2004
        if not is_number or int(each) >= 2**31:
            raise BadSetting(f"--broker-list: {each.strip()!r} is no broker id")
        found.append(int(each))
    twice = sorted(each for each in set(found) if found.count(each) > 1)
    if twice:
        raise BadSetting(f"--broker-list: broker {twice[0]} is listed more than once")
    return found


def _throttle(text: str | None) -> int | None:
    if text is None or text == NO_THROTTLE:  # Kafka's way to say none
        return None
    return quantities.rate(text, flag="--throttle")
