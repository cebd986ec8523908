"""`insync topics`: kafka-topics' flags and lines, on our brokers and on Apache Kafka's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from kio.schema.errors import ErrorCode

from insync.cli import topic_lines
from insync.cli.admin import BootstrapServer, CommandConfig, ask
from insync.cli.answer import Answer, JsonFlag, WrongUsage
from insync.cli.elect_damaged import elect_damaged
from insync.client.admin import Admin, ConfigValue, NewTopic, Partition, Topic
from insync.client.admin_connections import NotOffered, Refused
from insync.rules.refusals import Refusal

ACTIONS = ("--list", "--describe", "--create", "--alter", "--delete", "--elect-damaged")
FILTERS = (
    "--under-replicated-partitions",
    "--unavailable-partitions",
    "--under-min-isr-partitions",
    "--at-min-isr-partitions",
    "--topics-with-overrides",
)
# Each flag that does not go with every action, with the actions that it goes with.
GOES_WITH: Mapping[str, tuple[str, ...]] = {
    "--partitions": ("--create", "--alter"),
    "--replication-factor": ("--create",),
    "--replica-assignment": ("--create", "--alter"),
    "--config": ("--create",),
    "--if-not-exists": ("--create",),
    "--if-exists": ("--alter", "--delete", "--describe"),
    "--exclude-internal": ("--list", "--describe", "--elect-damaged"),
    "--topic-id": ("--describe",),
    **dict.fromkeys(FILTERS, ("--describe",)),
}
FACTOR_MAX = 32767
PARTITIONS_MAX = 2**31 - 1
BROKER_MAX = 2**31 - 1


class NoSuchTopic(Refusal):
    """No topic has this name, or id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The command line, after its flags were checked."""

    topic: str | None
    topic_id: str | None
    partitions: int | None
    replication_factor: int | None
    assignment: list[list[int]] | None
    config: dict[str, str]
    filter_by: str | None
    must_exist: bool
    must_be_new: bool
    with_internal: bool


def register(on: typer.Typer) -> None:
    on.command("topics")(topics)


def topics(
    bootstrap_server: BootstrapServer,
    command_config: CommandConfig = None,
    *,
    list_: Annotated[bool, typer.Option("--list", help="List the names of topics.")] = False,
    describe: Annotated[
        bool, typer.Option("--describe", help="Show partitions and replicas.")
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Create a topic.")] = False,
    alter: Annotated[bool, typer.Option("--alter", help="Add partitions.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete topics.")] = False,
    elect_damaged_: Annotated[
        bool,
        typer.Option(
            "--elect-damaged",
            help="Elect a leader where all replicas that may lead are damaged: an intact replica "
            "outside the ISR if there is one, else a damaged one. Show what is lost.",
        ),
    ] = False,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A topic; except with --create, a regular expression that matches whole names.",
        ),
    ] = None,
    topic_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Describe the topic with this id.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The number of partitions, in all.",
            show_default="the broker's num.partitions",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Replicas of each partition.",
            show_default="the broker's default.replication.factor",
        ),
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            metavar="1:2,2:3,...",
            help="The brokers of each partition; with --alter those that exist too.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of the new topic; may be repeated."),
    ] = None,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed if no such topic exists.")
    ] = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave out the cluster's internal topics.")
    ] = False,
    under_replicated_partitions: Annotated[
        bool,
        typer.Option(
            "--under-replicated-partitions", help="Only partitions with replicas out of sync."
        ),
    ] = False,
    unavailable_partitions: Annotated[
        bool,
        typer.Option("--unavailable-partitions", help="Only partitions without a live leader."),
    ] = False,
    under_min_isr_partitions: Annotated[
        bool,
        typer.Option("--under-min-isr-partitions", help="Only partitions that refuse acks=all."),
    ] = False,
    at_min_isr_partitions: Annotated[
        bool,
        typer.Option(
            "--at-min-isr-partitions",
            help="Only partitions that would refuse acks=all with one replica less.",
        ),
    ] = False,
    topics_with_overrides: Annotated[
        bool,
        typer.Option("--topics-with-overrides", help="Only topics with settings of their own."),
    ] = False,
    as_json: JsonFlag = False,
) -> Answer:
    """List, describe, create, grow and delete topics, with kafka-topics' flags."""
    values: dict[str, object] = {
        "--list": list_,
        "--describe": describe,
        "--create": create,
        "--alter": alter,
        "--delete": delete,
        "--elect-damaged": elect_damaged_,
        "--partitions": partitions,
        "--replication-factor": replication_factor,
        "--replica-assignment": replica_assignment,
        "--config": config,
        "--if-exists": if_exists,
        "--if-not-exists": if_not_exists,
        "--exclude-internal": exclude_internal,
        "--topic": topic,
        "--topic-id": topic_id,
        "--under-replicated-partitions": under_replicated_partitions,
        "--unavailable-partitions": unavailable_partitions,
        "--under-min-isr-partitions": under_min_isr_partitions,
        "--at-min-isr-partitions": at_min_isr_partitions,
        "--topics-with-overrides": topics_with_overrides,
    }
    flags = [flag for flag, value in values.items() if value not in (None, False, [])]
    action = _check_action(flags)
    options = TopicOptions(
        topic=topic,
        topic_id=topic_id,
        partitions=_check_range("--partitions", partitions, PARTITIONS_MAX),
        replication_factor=_check_range("--replication-factor", replication_factor, FACTOR_MAX),
        assignment=None if replica_assignment is None else _parse_assignment(replica_assignment),
        config=_parse_config(config or []),
        filter_by=next((flag for flag in FILTERS if flag in flags), None),
        must_exist=not if_exists,
        must_be_new=not if_not_exists,
        with_internal=not exclude_internal,
    )
    if topic is not None and action != "--create":
        _parse_pattern(topic)  # refused before a broker is asked
    data, view = ask(bootstrap_server, command_config, lambda admin: RUN[action](admin, options))
    return Answer(data=data, view=view, as_json=as_json)


# Checks of the command line, before a broker is asked.


def _check_action(flags: Sequence[str]) -> str:
    actions = [flag for flag in flags if flag in ACTIONS]
    if len(actions) != 1:
        raise WrongUsage(f"give exactly one of {', '.join(ACTIONS)}")
    (action,) = actions
    for flag in flags:
        if action not in GOES_WITH.get(flag, ACTIONS):
            raise WrongUsage(f"{flag} does not go with {action}")
    if action in ("--create", "--alter", "--delete") and "--topic" not in flags:
        raise WrongUsage(f"{action} needs --topic")
    if action == "--alter" and "--partitions" not in flags:
        raise WrongUsage("--alter needs --partitions")
    _refuse_together(flags, ["--topic", "--topic-id"])
    _refuse_together(flags, FILTERS)
    if action == "--create":
        _refuse_together(flags, ["--replica-assignment", "--partitions"])
        _refuse_together(flags, ["--replica-assignment", "--replication-factor"])
    if action == "--describe" and "--if-exists" in flags:
        _need_one_of(flags, ["--topic", "--topic-id"], because="--if-exists")
    return action


def _refuse_together(flags: Sequence[str], rivals: Sequence[str]) -> None:
    both = [flag for flag in rivals if flag in flags]
    if len(both) > 1:
        raise WrongUsage(f"{both[0]} does not go with {both[1]}")


def _need_one_of(flags: Sequence[str], needed: Sequence[str], *, because: str) -> None:
    if not any(flag in flags for flag in needed):
        raise WrongUsage(f"{because} needs {' or '.join(needed)}")


def _check_range(flag: str, value: int | None, most: int) -> int | None:
    if value is not None and not 1 <= value <= most:
        raise WrongUsage(f"{flag} is {value}; it must be between 1 and {most}")
    return value


def _parse_assignment(text: str) -> list[list[int]]:
    assignment = []
    for partition in text.split(","):
        brokers = [broker.strip() for broker in partition.split(":")]
        for broker in brokers:
            is_number = (
                broker.isascii() and broker.isdecimal() and len(broker) <= len(str(BROKER_MAX))
            )
            if not is_number or int(broker) > BROKER_MAX:
                raise WrongUsage(f"--replica-assignment: {broker!r} is no broker id")
        assignment.append([int(broker) for broker in brokers])
    for number, replicas in enumerate(assignment):
        if len(set(replicas)) < len(replicas):
            raise WrongUsage(f"--replica-assignment: partition {number} names a broker twice")
        if len(replicas) != len(assignment[0]):
            raise WrongUsage(
                f"--replica-assignment: partition {number} has {len(replicas)} replicas, "
                f"partition 0 has {len(assignment[0])}"
            )
    return assignment


def _parse_config(pairs: Sequence[str]) -> dict[str, str]:
    config = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise WrongUsage(f"--config {pair!r} is not of the form KEY=VALUE")
        config[name.strip()] = value.strip()
    return config


def _parse_pattern(text: str) -> re.Pattern[str]:
    """As Kafka reads it: a comma is an alternative, and quotes around the whole do not count."""
    expression = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return re.compile(expression)
    except re.error as error:
        raise WrongUsage(f"--topic {text!r} is no regular expression: {error}") from None


# The requests to the cluster.

Output = tuple[object, str]  # data for --json, text for people


async def _select_topics(admin: Admin, options: TopicOptions) -> list[Topic]:
    """The topics that the flags select; refused if there is none, unless --if-exists is set."""
    topics = [
        topic for topic in await admin.topics() if options.with_internal or not topic.is_internal
    ]
    if options.topic_id is not None:
        topics = [topic for topic in topics if topic_lines.topic_id(topic) == options.topic_id]
        if not topics and options.must_exist:
            raise NoSuchTopic(f"TopicId '{options.topic_id}' does not exist as expected")
    elif options.topic is not None:
        pattern = _parse_pattern(options.topic)
        topics = [topic for topic in topics if pattern.fullmatch(topic.name)]
        if not topics and options.must_exist:
            raise NoSuchTopic(f"Topic '{options.topic}' does not exist as expected")
    return topics


async def _list(admin: Admin, options: TopicOptions) -> Output:
    topics = await _select_topics(admin, options)
    data = [
        {
            "topic": topic.name,
            "topic_id": topic_lines.topic_id(topic),
            "internal": topic.is_internal,
        }
        for topic in topics
    ]
    return data, "".join(f"{topic.name}\n" for topic in topics)


async def _describe(admin: Admin, options: TopicOptions) -> Output:
    topics = await admin.described(await _select_topics(admin, options))
    configs = await admin.topic_configs([topic.name for topic in topics])
    alive = {broker.number for broker in await admin.brokers()}
    if configs is None and options.filter_by in FILTERS[2:]:
        raise NotOffered(f"{options.filter_by}: these brokers do not offer DescribeConfigs")
    rows = []
    for topic in topics:
        settings = (configs or {}).get(topic.name, {})
        row = topic_lines.topic_row(topic, None if configs is None else settings)
        if options.filter_by == "--topics-with-overrides":
            if row["configs"]:
                rows.append({**row, "partitions": []})
            continue
        row["partitions"] = [
            topic_lines.partition_row(partition)
            for partition in topic.partitions
            if _is_shown(partition, options.filter_by, _min_isr(settings), alive)
        ]
        if row["partitions"] or options.filter_by is None:
            rows.append(row)
    shows_topics = options.filter_by in (None, "--topics-with-overrides")
    return rows, topic_lines.text(rows, with_topics=shows_topics)


def _min_isr(settings: Mapping[str, ConfigValue]) -> int:
    config = settings.get("min.insync.replicas")
    return int(config.value) if config is not None and config.value is not None else 1


def _is_shown(partition: Partition, filter_by: str | None, min_isr: int, alive: set[Any]) -> bool:
    is_led = partition.leader is not None and partition.leader in alive
    match filter_by:
        case "--under-replicated-partitions":
            return partition.is_under_replicated
        case "--unavailable-partitions":
            return not is_led
        case "--under-min-isr-partitions":
            return partition.leader is None or len(partition.isr) < min_isr
        case "--at-min-isr-partitions":
            return len(partition.isr) == min_isr
        case _:
            return True


async def _create(admin: Admin, options: TopicOptions) -> Output:
    assert options.topic is not None, "checked"
    new = NewTopic(
        name=options.topic,
        partitions=options.partitions or -1,
        replication_factor=options.replication_factor or -1,
        assignment=options.assignment or (),
        config=options.config,
    )
    warning = topic_lines.COLLISION if {".", "_"} & set(options.topic) else ""
    try:
        await admin.create_topic(new)
    except Refused as refused:
        if options.must_be_new or refused.code is not ErrorCode.topic_already_exists:
            raise
        return {"created": []}, warning
    return {"created": [options.topic]}, f"{warning}Created topic {options.topic}.\n"


async def _alter(admin: Admin, options: TopicOptions) -> Output:
    assert options.partitions is not None, "checked"
    topics = await _select_topics(admin, options)
    for topic in topics:
        # As in Kafka: the assignment is of all partitions; those that exist are not compared.
        new = None if options.assignment is None else options.assignment[len(topic.partitions) :]
        await admin.grow_topic(topic.name, options.partitions, new)
    return {"altered": [topic.name for topic in topics]}, ""


async def _delete(admin: Admin, options: TopicOptions) -> Output:
    topics = await _select_topics(admin, options)
    for topic in topics:
        await admin.delete_topic(topic.name)
    return {"deleted": [topic.name for topic in topics]}, ""


async def _elect_damaged(admin: Admin, options: TopicOptions) -> Output:
    return await elect_damaged(admin, await _select_topics(admin, options))


RUN: Mapping[str, Callable[[Admin, TopicOptions], Any]] = {
    "--list": _list,
    "--describe": _describe,
    "--create": _create,
    "--alter": _alter,
    "--delete": _delete,
    "--elect-damaged": _elect_damaged,
}
