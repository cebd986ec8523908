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
from insync.client.admin import Admin, ConfigValue, NewTopic, Partition, Topic
from insync.client.admin_connections import NotOffered, Refused
from insync.rules.refusals import Refusal

ACTIONS = ("--list", "--describe", "--create", "--alter", "--delete")
FILTERS = (
    "--under-replicated-partitions",
    "--unavailable-partitions",
    "--under-min-isr-partitions",
    "--at-min-isr-partitions",
    "--topics-with-overrides",
)
# Each flag that does not go with every action, and those it goes with.
GOES_WITH: Mapping[str, tuple[str, ...]] = {
    "--partitions": ("--create", "--alter"),
    "--replication-factor": ("--create",),
    "--replica-assignment": ("--create", "--alter"),
    "--config": ("--create",),
    "--if-not-exists": ("--create",),
    "--if-exists": ("--alter", "--delete", "--describe"),
    "--exclude-internal": ("--list", "--describe"),
    "--topic-id": ("--describe",),
    **dict.fromkeys(FILTERS, ("--describe",)),
}
FACTOR_MAX = 32767
PARTITIONS_MAX = 2**31 - 1
BROKER_MAX = 2**31 - 1


class NoSuchTopic(Refusal):
    """Nothing of this name, or id, is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line, after it has been found to make sense."""

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
    list_: Annotated[bool, typer.Option("--list", help="Every topic's name.")] = False,
    describe: Annotated[bool, typer.Option("--describe", help="Partitions and replicas.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Make a topic.")] = False,
    alter: Annotated[bool, typer.Option("--alter", help="Add partitions.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete topics.")] = False,
    topic: Annotated[
        str | None,
        typer.Option(help="A name; except with --create a regular expression of whole names."),
    ] = None,
    topic_id: Annotated[str | None, typer.Option(help="Describe the topic with this id.")] = None,
    partitions: Annotated[int | None, typer.Option(help="How many, in all.")] = None,
    replication_factor: Annotated[int | None, typer.Option(help="Replicas of each.")] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            metavar="1:2,2:3,...", help="Brokers of each partition; with --alter of all of them."
        ),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the new topic.")
    ] = None,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="No such topic is fine.")] = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")
    ] = False,
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave the cluster's own topics out.")
    ] = False,
    under_replicated_partitions: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only where replicas lag.")
    ] = False,
    unavailable_partitions: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only those nobody leads.")
    ] = False,
    under_min_isr_partitions: Annotated[
        bool, typer.Option("--under-min-isr-partitions", help="Only those that refuse acks=all.")
    ] = False,
    at_min_isr_partitions: Annotated[
        bool, typer.Option("--at-min-isr-partitions", help="Only those that can lose no replica.")
    ] = False,
    topics_with_overrides: Annotated[
        bool, typer.Option("--topics-with-overrides", help="Only topics with own settings.")
    ] = False,
    as_json: JsonFlag = False,
) -> Answer:
    """List, describe, create, grow and delete topics, with kafka-topics' flags."""
    flags: dict[str, object] = {
        "--list": list_,
        "--describe": describe,
        "--create": create,
        "--alter": alter,
        "--delete": delete,
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
    given = [flag for flag, value in flags.items() if value not in (None, False, [])]
    action = _checked_action(given)
    asked = Asked(
        topic=topic,
        topic_id=topic_id,
        partitions=_in_range("--partitions", partitions, PARTITIONS_MAX),
        replication_factor=_in_range("--replication-factor", replication_factor, FACTOR_MAX),
        assignment=None if replica_assignment is None else _assignment(replica_assignment),
        config=_config(config or []),
        filter_by=next((flag for flag in FILTERS if flag in given), None),
        must_exist=not if_exists,
        must_be_new=not if_not_exists,
        with_internal=not exclude_internal,
    )
    if topic is not None and action != "--create":
        _pattern(topic)  # refused before anybody is asked
    data, view = ask(bootstrap_server, command_config, lambda admin: DO[action](admin, asked))
    return Answer(data=data, view=view, as_json=as_json)


# Is this a command line that means something?


def _checked_action(given: Sequence[str]) -> str:
    actions = [flag for flag in given if flag in ACTIONS]
    if len(actions) != 1:
        raise WrongUsage(f"give exactly one of {', '.join(ACTIONS)}")
    (action,) = actions
    for flag in given:
        if action not in GOES_WITH.get(flag, ACTIONS):
            raise WrongUsage(f"{flag} does not go with {action}")
    if action in ("--create", "--alter", "--delete") and "--topic" not in given:
        raise WrongUsage(f"{action} needs --topic")
    if action == "--alter" and "--partitions" not in given:
        raise WrongUsage("--alter needs --partitions")
    _refuse_together(given, ["--topic", "--topic-id"])
    _refuse_together(given, FILTERS)
    if action == "--create":
        _refuse_together(given, ["--replica-assignment", "--partitions"])
        _refuse_together(given, ["--replica-assignment", "--replication-factor"])
    if action == "--describe" and "--if-exists" in given:
        _need_one_of(given, ["--topic", "--topic-id"], because="--if-exists")
    return action


def _refuse_together(given: Sequence[str], flags: Sequence[str]) -> None:
    both = [flag for flag in flags if flag in given]
    if len(both) > 1:
        raise WrongUsage(f"{both[0]} does not go with {both[1]}")


def _need_one_of(given: Sequence[str], flags: Sequence[str], *, because: str) -> None:
    if not any(flag in given for flag in flags):
        raise WrongUsage(f"{because} needs {' or '.join(flags)}")


def _in_range(flag: str, value: int | None, most: int) -> int | None:
    if value is not None and not 1 <= value <= most:
        raise WrongUsage(f"{flag} is {value}; it must be between 1 and {most}")
    return value


def _assignment(text: str) -> list[list[int]]:
    found = []
    for part in text.split(","):
        brokers = [each.strip() for each in part.split(":")]
        for each in brokers:
            is_number = each.isascii() and each.isdecimal() and len(each) <= len(str(BROKER_MAX))
            if not is_number or int(each) > BROKER_MAX:
                raise WrongUsage(f"--replica-assignment: {each!r} is no broker id")
        found.append([int(each) for each in brokers])
    for number, replicas in enumerate(found):
        if len(set(replicas)) < len(replicas):
            raise WrongUsage(f"--replica-assignment: partition {number} names a broker twice")
        if len(replicas) != len(found[0]):
            raise WrongUsage(
                f"--replica-assignment: partition {number} has {len(replicas)} replicas, "
                f"partition 0 has {len(found[0])}"
            )
    return found


def _config(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise WrongUsage(f"--config {pair!r} is not of the form KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


def _pattern(text: str) -> re.Pattern[str]:
    """As Kafka reads it: a comma is an alternative, and quotes around the whole do not count."""
    expression = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return re.compile(expression)
    except re.error as error:
        raise WrongUsage(f"--topic {text!r} is no regular expression: {error}") from None


# What is asked of the cluster.

Told = tuple[object, str]  # for scripts, for people


async def _chosen(admin: Admin, asked: Asked) -> list[Topic]:
    """The topics that are meant; none is a refusal unless that was said to be fine."""
    found = [
        topic for topic in await admin.topics() if asked.with_internal or not topic.is_internal
    ]
    if asked.topic_id is not None:
        found = [topic for topic in found if topic_lines.topic_id(topic) == asked.topic_id]
        if not found and asked.must_exist:
            raise NoSuchTopic(f"TopicId '{asked.topic_id}' does not exist as expected")
    elif asked.topic is not None:
        pattern = _pattern(asked.topic)
        found = [topic for topic in found if pattern.fullmatch(topic.name)]
        if not found and asked.must_exist:
            raise NoSuchTopic(f"Topic '{asked.topic}' does not exist as expected")
    return found


async def _list(admin: Admin, asked: Asked) -> Told:
    found = await _chosen(admin, asked)
    data = [
        {
            "topic": topic.name,
            "topic_id": topic_lines.topic_id(topic),
            "internal": topic.is_internal,
        }
        for topic in found
    ]
    return data, "".join(f"{topic.name}\n" for topic in found)


async def _describe(admin: Admin, asked: Asked) -> Told:
    found = await admin.described(await _chosen(admin, asked))
    configs = await admin.topic_configs([topic.name for topic in found])
    alive = {broker.number for broker in await admin.brokers()}
    if configs is None and asked.filter_by in FILTERS[2:]:
        raise NotOffered(f"{asked.filter_by}: these brokers do not tell settings (DescribeConfigs)")
    rows = []
    for topic in found:
        settings = (configs or {}).get(topic.name, {})
        row = topic_lines.topic_row(topic, None if configs is None else settings)
        if asked.filter_by == "--topics-with-overrides":
            if row["configs"]:
                rows.append({**row, "partitions": []})
            continue
        row["partitions"] = [
            topic_lines.partition_row(part)
            for part in topic.partitions
            if _is_shown(part, asked.filter_by, _min_isr(settings), alive)
        ]
        if row["partitions"] or asked.filter_by is None:
            rows.append(row)
    shows_topics = asked.filter_by in (None, "--topics-with-overrides")
    return rows, topic_lines.text(rows, with_topics=shows_topics)


def _min_isr(settings: Mapping[str, ConfigValue]) -> int:
    found = settings.get("min.insync.replicas")
    return int(found.value) if found is not None and found.value is not None else 1


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


async def _create(admin: Admin, asked: Asked) -> Told:
    assert asked.topic is not None, "checked"
    new = NewTopic(
        name=asked.topic,
        partitions=asked.partitions or -1,
        replication_factor=asked.replication_factor or -1,
        assignment=asked.assignment or (),
        config=asked.config,
    )
    warning = topic_lines.COLLISION if {".", "_"} & set(asked.topic) else ""
    try:
        await admin.create_topic(new)
    except Refused as refused:
        if asked.must_be_new or refused.code is not ErrorCode.topic_already_exists:
            raise
        return {"created": []}, warning
    return {"created": [asked.topic]}, f"{warning}Created topic {asked.topic}.\n"


async def _alter(admin: Admin, asked: Asked) -> Told:
    assert asked.partitions is not None, "checked"
    found = await _chosen(admin, asked)
    for topic in found:
        # As Kafka has it: the assignment is of all partitions, those that are there pass unread.
        new = None if asked.assignment is None else asked.assignment[len(topic.partitions) :]
        await admin.grow_topic(topic.name, asked.partitions, new)
    return {"altered": [topic.name for topic in found]}, ""


async def _delete(admin: Admin, asked: Asked) -> Told:
    found = await _chosen(admin, asked)
    for topic in found:
        await admin.delete_topic(topic.name)
    return {"deleted": [topic.name for topic in found]}, ""


DO: Mapping[str, Callable[[Admin, Asked], Any]] = {
    "--list": _list,
    "--describe": _describe,
    "--create": _create,
    "--alter": _alter,
    "--delete": _delete,
}
