"""`insync reassign`: kafka-reassign-partitions' flags, JSON and lines, and more flags.

It works with Insync's brokers and with Apache Kafka's. `insync.moves` does the work; here are the
flags and the output.
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
from insync.cli.reassign_do import CommandResult, ReassignOptions, execute, status
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
    """The flags that an action needs, and those that it may have."""

    run: Callable[[Admin, ReassignOptions], Awaitable[CommandResult]]
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
        ("--throttle", "--finish-in", "--network", "--max-impact", "--measure-for", "--formula"),
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
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Say how much a plan moves, how long it takes, and which throttle is safe.",
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Start a plan.")] = False,
    watch: Annotated[
        bool | None,
        typer.Option(
            "--watch/--no-watch",
            help="Follow moves to their end and remove the throttle.",
            show_default="--watch on a terminal",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Show how far a plan is; remove its throttle when it is done."
        ),
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel a plan's moves.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show moves under way.")] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Remove throttles that were left behind.")
    ] = False,
    reassignment_json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The plan, in Kafka's JSON.")
    ] = None,
    topics_to_move_json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The topics to balance, in Kafka's JSON.")
    ] = None,
    broker_list: Annotated[
        str | None, typer.Option(metavar="ID,ID,...", help="The brokers to balance over.")
    ] = None,
    disable_rack_aware: Annotated[
        bool, typer.Option("--disable-rack-aware", help="Ignore racks.")
    ] = False,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            "--replication-quota",
            metavar="B/s",
            help="Throttle in bytes per second on each broker, for example 10MB. MB = 10^6 bytes; "
            "MiB is accepted.",
            show_default="unlimited",
        ),
    ] = None,
    replica_alter_log_dirs_throttle: Annotated[
        str | None,
        typer.Option(metavar="B/s", help="Refused: replicas do not move between directories."),
    ] = None,
    additional: Annotated[
        bool,
        typer.Option("--additional", help="Add to moves under way, or change their throttle."),
    ] = False,
    preserve_throttles: Annotated[
        bool, typer.Option("--preserve-throttles", help="Leave throttles set.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="MS",
            help="Time for the cluster to start the moves; with --watch, time to wait for a "
            "broker that is down.",
            show_default="10000; --watch: no limit on a terminal, else --stuck-after",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Execute outside the safe range; with --sweep, remove all throttles.",
        ),
    ] = False,
    finish_in: Annotated[
        str | None,
        typer.Option(
            metavar="30m", help="Compute the throttle with which the moves end in this time."
        ),
    ] = None,
    network: Annotated[
        str | None, typer.Option(metavar="1Gbit", help="Network bandwidth of one broker.")
    ] = None,
    max_impact: Annotated[
        str | None,
        typer.Option(
            metavar="30%",
            help="Compute the throttle with which the moves take this fraction of --network. "
            "Each replica to copy counts as 3 MB more than it has: a throttle bounds bytes, and "
            "many small replicas cost CPU.",
        ),
    ] = None,
    formula: Annotated[
        bool, typer.Option("--formula", help="With --plan: show KIP-73's MoveTime as well.")
    ] = False,
    measure_for: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Measure for this time what clients write, also where the brokers report it.",
            show_default="what the brokers report of the last 10s; on Apache Kafka since --plan or "
            "--generate, else for 10s",
        ),
    ] = None,
    stuck_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Report moves as stuck after this time without a lower lag.",
            show_default="30s",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> Answer:
    """Move replicas, throttled until they have moved, with kafka-reassign-partitions' flags."""
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
        "--formula": formula,
        "--stuck-after": stuck_after is not None,
    }
    action = _check_action(chosen, flags)
    if replica_alter_log_dirs_throttle not in (None, NO_THROTTLE):
        raise BadSetting(
            "--replica-alter-log-dirs-throttle: insync moves replicas between brokers, not between "
            "directories of one; leave it out"
        )
    if max_impact is not None and network is None:
        raise WrongUsage("--max-impact is a fraction of the network; give --network too")
    timeout_ms = None if timeout is None else quantities.milliseconds(timeout, flag="--timeout")
    stuck_after_s = (
        STUCK_AFTER_S
        if stuck_after is None
        else quantities.seconds(stuck_after, flag="--stuck-after")
    )
    is_on_terminal = sys.stdout.isatty() and not as_json
    options = ReassignOptions(
        bootstrap=bootstrap_server,
        plan=_read_plan(plan or reassignment_json_file),
        topics=_read_topics(topics_to_move_json_file),
        brokers=_parse_brokers(broker_list),
        is_rack_aware=not disable_rack_aware,
        throttle_bytes_per_s=_parse_throttle(throttle),
        is_additional=additional,
        preserves_throttles=preserve_throttles,
        timeout_ms=timeout_ms or TIMEOUT_MS,
        force=force,
        starts=execute,
        watches=is_on_terminal if watch is None else watch,
        finish_in_s=None
        if finish_in is None
        else quantities.seconds(finish_in, flag="--finish-in"),
        network_bytes_per_s=None
        if network is None
        else quantities.network(network, flag="--network"),
        max_impact=None
        if max_impact is None
        else quantities.fraction(max_impact, flag="--max-impact"),
        shows_formula=formula,
        measure_s=None
        if measure_for is None
        else quantities.seconds(measure_for, flag="--measure-for"),
        stuck_after_s=stuck_after_s,
        gives_up_after_ms=gives_up_after_ms(
            timeout_ms, stuck_after_s, is_on_terminal=is_on_terminal
        ),
        state_directory=state_directory(os.environ),
        as_json=as_json,
    )
    result = ask(bootstrap_server, command_config, lambda admin: action.run(admin, options))
    return Answer(data=result.data, view=result.text, as_json=as_json, exit_code=result.exit_code)


def gives_up_after_ms(
    timeout_ms: int | None, stuck_after_s: int, *, is_on_terminal: bool
) -> int | None:
    """How long to wait for a broker that is down; on a terminal the operator decides."""
    if timeout_ms is not None:
        return timeout_ms
    return None if is_on_terminal else stuck_after_s * 1_000


def _check_action(chosen: Mapping[str, bool], flags: Mapping[str, bool]) -> _Action:
    """The one action; its flags are checked."""
    actions = [flag for flag, is_given in chosen.items() if is_given]
    if not actions and flags["--watch"]:
        name, action = "--watch", WATCH_ALONE
    elif len(actions) == 1:
        name, action = actions[0], ACTIONS[actions[0]]
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


def _read_plan(path: Path | None) -> Plan:
    if path is None:
        return {}
    try:
        text = read_text(path)
        plan = parse_plan(text)
        if names_directories(text):
            sys.stderr.write("insync: log_dirs are ignored: each broker has one directory\n")
        return plan
    except BadPlan as refusal:
        raise _name_file(path, refusal) from None


def _read_topics(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return parse_topics(read_text(path))
    except BadPlan as refusal:
        raise _name_file(path, refusal) from None


def _name_file(path: Path, refusal: BadPlan) -> BadPlan:
    text = str(refusal)
    return BadPlan(text if str(path) in text else f"{path}: {text}")


def _parse_brokers(text: str | None) -> list[int]:
    if text is None:
        return []
    brokers = []
    for each in text.split(","):
        is_number = each.strip().isascii() and each.strip().isdecimal() and len(each.strip()) <= 10  # noqa: PLR2004
        if not is_number or int(each) >= 2**31:
            raise BadSetting(f"--broker-list: {each.strip()!r} is no broker id")
        brokers.append(int(each))
    twice = sorted(each for each in set(brokers) if brokers.count(each) > 1)
    if twice:
        raise BadSetting(f"--broker-list: broker {twice[0]} is listed more than once")
    return brokers


def _parse_throttle(text: str | None) -> int | None:
    if text is None or text == NO_THROTTLE:  # as in Kafka's tool
        return None
    return quantities.rate(text, flag="--throttle")
