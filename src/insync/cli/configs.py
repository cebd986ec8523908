"""`insync configs`: kafka-configs' flags and lines, on our brokers and on Apache Kafka's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from insync.broker.properties import read_properties
from insync.cli.admin import BootstrapServer, CommandConfig, ask
from insync.cli.answer import Answer, JsonFlag, WrongUsage
from insync.client.admin import Admin, ConfigValue
from insync.rules.refusals import Refusal
from insync.rules.throttled_replicas import (
    ENTRY,
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
)
from insync.wire.configs import ConfigSource, Resource

ENTITY_TYPES: Mapping[str, Resource] = {"topics": Resource.TOPIC, "brokers": Resource.BROKER}
# KIP-73 prints them so.
ENTITY_TYPES_IN_SINGULAR = {"topic": Resource.TOPIC, "broker": Resource.BROKER}
RATE_OF_LIST = {LEADER_LIST: LEADER_RATE, FOLLOWER_LIST: FOLLOWER_RATE}
KAFKAS_TYPES = ("broker-loggers", "users", "clients", "ips", "groups", "client-metrics")
BROKER_MAX = 2**31 - 1
# As Kafka's tools name them.
SOURCE_NAMES: Mapping[ConfigSource, str] = {
    ConfigSource.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    ConfigSource.DYNAMIC_BROKER: "DYNAMIC_BROKER_CONFIG",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    ConfigSource.STATIC_BROKER: "STATIC_BROKER_CONFIG",
    ConfigSource.DEFAULT: "DEFAULT_CONFIG",
}


class NotSet(Refusal):
    """A setting to be deleted was not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A topic or broker with settings; without a name, the default of all brokers."""

    kind: Resource
    name: str

    @property
    def noun(self) -> str:
        return "topic" if self.kind is Resource.TOPIC else "broker"

    @property
    def is_default(self) -> bool:
        return not self.name

    @property
    def own_source(self) -> ConfigSource:
        """The source of values that were set for this entity alone."""
        if self.kind is Resource.TOPIC:
            return ConfigSource.TOPIC
        if self.is_default:
            return ConfigSource.DYNAMIC_DEFAULT_BROKER
        return ConfigSource.DYNAMIC_BROKER


def register(on: typer.Typer) -> None:
    on.command("configs")(configs)


def configs(
    bootstrap_server: BootstrapServer,
    command_config: CommandConfig = None,
    *,
    alter: Annotated[bool, typer.Option("--alter", help="Change settings.")] = False,
    describe: Annotated[
        bool, typer.Option("--describe", help="Show settings that were set.")
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="With --describe: show every setting.")
    ] = False,
    entity_type: Annotated[
        str | None, typer.Option(metavar="topics|brokers", help="What has the settings.")
    ] = None,
    entity_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="A topic's name, or a broker's id.")
    ] = None,
    entity_default: Annotated[
        bool, typer.Option("--entity-default", help="The default of all brokers.")
    ] = False,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="The settings of this topic.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option(metavar="ID", help="The settings of this broker.")
    ] = None,
    broker_defaults: Annotated[
        bool, typer.Option("--broker-defaults", help="The default of all brokers.")
    ] = False,
    add_config: Annotated[
        str | None, typer.Option(metavar="K=V,K=[V,V],...", help="Settings to set.")
    ] = None,
    add_config_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings to set, from a file.")
    ] = None,
    delete_config: Annotated[
        str | None, typer.Option(metavar="K,K,...", help="Settings to remove.")
    ] = None,
    as_json: JsonFlag = False,
) -> Answer:
    """Show and change settings of topics and brokers, with kafka-configs' flags."""
    if alter == describe:
        raise WrongUsage("give exactly one of --alter, --describe")
    kind, name = _parse_entity(
        entity_type=entity_type,
        entity_name=entity_name,
        entity_default=entity_default,
        topic=topic,
        broker=broker,
        broker_defaults=broker_defaults,
    )
    if describe:
        if add_config is not None or add_config_file is not None or delete_config is not None:
            raise WrongUsage("--describe changes nothing; use --alter")
        data, view = ask(
            bootstrap_server, command_config, lambda admin: _describe(admin, kind, name, all_)
        )
        return Answer(data=data, view=view, as_json=as_json)
    if all_:
        raise WrongUsage("--all does not go with --alter")
    if add_config is not None and add_config_file is not None:
        raise WrongUsage("--add-config does not go with --add-config-file")
    added = _parse_pairs(add_config or "")
    if add_config_file is not None:
        added = read_properties(add_config_file)
    deleted = _parse_names(delete_config or "")
    if not added and not deleted:
        raise WrongUsage("--alter needs --add-config, --add-config-file or --delete-config")
    both = sorted(set(added) & set(deleted))
    if both:
        raise WrongUsage(f"{both[0]} is both set and deleted")
    _check_throttles(kind, added)
    if name is None:
        name = _name_of_all(kind, [*added, *deleted])
    data, view = ask(
        bootstrap_server, command_config, lambda admin: _alter(admin, kind, name, added, deleted)
    )
    return Answer(data=data, view=view, as_json=as_json)


# Checks of the command line, before a broker is asked.


def _parse_entity(
    *,
    entity_type: str | None,
    entity_name: str | None,
    entity_default: bool,
    topic: str | None,
    broker: str | None,
    broker_defaults: bool,
) -> tuple[Resource, str | None]:
    """The kind of entity and its name: "" for the default, None for every entity."""
    flags = {
        "--entity-type": entity_type is not None,
        "--topic": topic is not None,
        "--broker": broker is not None,
        "--broker-defaults": broker_defaults,
    }
    chosen = [flag for flag, is_given in flags.items() if is_given]
    if len(chosen) != 1:
        raise WrongUsage(f"give exactly one of {', '.join(flags)}")
    if entity_type is None:
        if entity_name is not None or entity_default:
            raise WrongUsage("--entity-name and --entity-default go with --entity-type")
        if broker_defaults:
            return Resource.BROKER, ""
        kind, name = (Resource.BROKER, broker) if topic is None else (Resource.TOPIC, topic)
        return kind, _check_name(kind, name)
    if entity_name is not None and entity_default:
        raise WrongUsage("--entity-name does not go with --entity-default")
    kind = _parse_kind(entity_type)
    if entity_default and kind is Resource.TOPIC:
        raise WrongUsage("topics have no default of their own; set it for brokers")
    return kind, "" if entity_default else _check_name(kind, entity_name)


def _check_throttles(kind: Resource, added: Mapping[str, str]) -> None:
    """KIP-73 prints a rate under the name of a list: refuse it, and name the key of the rate."""
    for name, rate in RATE_OF_LIST.items():
        if name in added and (kind is Resource.BROKER or added[name].strip().isdecimal()):
            raise WrongUsage(
                f"{name} is a topic's list of replicas (PARTITION:BROKER,... or *); the rate in"
                f" B/s is {rate}, set for a broker"
            )


def _name_of_all(kind: Resource, names: Sequence[str]) -> str | None:
    """The name that means all entities: KIP-73 sets throttles for all brokers or topics so."""
    if kind is Resource.BROKER:
        return ""
    if set(names) <= set(RATE_OF_LIST):
        return None
    raise WrongUsage(
        "--alter of topics needs --entity-name; only lists of throttled replicas are set for all"
    )


def _parse_kind(entity_type: str) -> Resource:
    if entity_type in ENTITY_TYPES:
        return ENTITY_TYPES[entity_type]
    if entity_type in ENTITY_TYPES_IN_SINGULAR:
        return ENTITY_TYPES_IN_SINGULAR[entity_type]
    known = " or ".join(ENTITY_TYPES)
    why = "are not configured with insync" if entity_type in KAFKAS_TYPES else "is not known"
    raise WrongUsage(f"--entity-type: {entity_type!r} {why}; use {known}")


def _check_name(kind: Resource, name: str | None) -> str | None:
    if name is None:
        return None
    if not name:
        raise WrongUsage("a name is empty; --entity-default means all brokers")
    if kind is Resource.BROKER:
        is_number = name.isascii() and name.isdecimal() and len(name) <= len(str(BROKER_MAX))
        if not is_number or int(name) > BROKER_MAX:
            raise WrongUsage(f"{name!r} is no broker id")
        return str(int(name))
    return name


def _parse_pairs(text: str) -> dict[str, str]:
    """`k=v,k2=[a,b]`: brackets keep commas together; throttled replicas need none (KIP-73)."""
    settings: dict[str, str] = {}
    for pair in re.split(r",(?![^\[\]]*\])", text) if text.strip() else []:
        name, separator, value = pair.partition("=")
        last = next(reversed(settings), None)
        if not separator and last in RATE_OF_LIST and ENTRY.fullmatch(pair.strip()):
            settings[last] += f",{pair.strip()}"
            continue
        if not separator or not name.strip():
            raise WrongUsage(f"--add-config: {pair!r} is not of the form KEY=VALUE")
        value = value.strip()
        is_bracketed = value.startswith("[") and value.endswith("]")
        settings[name.strip()] = value[1:-1] if is_bracketed else value
    for name in settings.keys() & RATE_OF_LIST.keys():
        settings[name] = _with_colons(settings[name])
    return settings


def _with_colons(replicas: str) -> str:
    """KIP-73 writes 0-1, Apache Kafka has 0:1."""
    entries = [entry.strip() for entry in replicas.split(",")]
    return ",".join(
        entry if (match := ENTRY.fullmatch(entry)) is None else f"{match[1]}:{match[2]}"
        for entry in entries
    )


def _parse_names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


# The requests to the cluster.

Output = tuple[object, str]  # data for --json, text for people


async def _describe(admin: Admin, kind: Resource, name: str | None, every: object) -> Output:
    entities = (
        [Entity(kind=kind, name=name)] if name is not None else await _list_entities(admin, kind)
    )
    rows, lines = [], []
    for entity in entities:
        configs = await admin.configs(entity.kind, entity.name)
        shown = [config for config in configs if every or config.source is entity.own_source]
        rows.append(
            {
                "entity_type": f"{entity.noun}s",
                "entity_name": None if entity.is_default else entity.name,
                "configs": [_row(config) for config in shown],
            }
        )
        if entity.is_default:
            lines.append("Default configs for brokers in the cluster are:")
        else:
            which = "All" if every else "Dynamic"
            lines.append(f"{which} configs for {entity.noun} {entity.name} are:")
        lines += [_line(config) for config in shown]
    return rows, "".join(f"{line}\n" for line in lines)


async def _list_entities(admin: Admin, kind: Resource) -> list[Entity]:
    if kind is Resource.TOPIC:
        names = [topic.name for topic in await admin.topics()]
    else:
        names = [str(number) for number in sorted(each.number for each in await admin.brokers())]
        names.append("")  # the default of all brokers
    return [Entity(kind=kind, name=name) for name in names]


def _source_name(source: ConfigSource) -> str:
    return SOURCE_NAMES.get(source, source.name)


def _row(config: ConfigValue) -> dict[str, object]:
    return {
        "name": config.name,
        "value": config.value,
        "source": _source_name(config.source),
        "read_only": config.is_read_only,
        "sensitive": config.is_sensitive,
        "synonyms": [
            {"name": each.name, "value": each.value, "source": _source_name(each.source)}
            for each in config.synonyms
        ],
    }


def _line(config: ConfigValue) -> str:
    synonyms = ", ".join(
        f"{_source_name(each.source)}:{each.name}={_shown(each.value)}" for each in config.synonyms
    )
    is_sensitive = str(config.is_sensitive).lower()
    value = _shown(config.value)
    return f"  {config.name}={value} sensitive={is_sensitive} synonyms={{{synonyms}}}"


def _shown(value: str | None) -> str:
    return "null" if value is None else value


async def _alter(
    admin: Admin,
    kind: Resource,
    name: str | None,
    added: Mapping[str, str],
    deleted: Sequence[str],
) -> Output:
    """Of one entity, or (None) of all topics."""
    names = [topic.name for topic in await admin.topics()] if name is None else [name]
    warnings: dict[str, None] = {}
    lines = []
    for each in names:
        entity = Entity(kind=kind, name=each)
        if deleted:
            await _check_set(admin, entity, deleted)
        warning = await admin.alter_configs(kind, each, set_values=added, deleted=deleted)
        if warning:
            warnings[warning] = None
        lines.append(
            "Completed updating default config for brokers in the cluster."
            if entity.is_default
            else f"Completed updating config for {entity.noun} {entity.name}."
        )
    data = {
        "set": dict(added),
        "deleted": list(deleted),
        "warning": "; ".join(warnings) or None,
    }
    lines = [*(f"WARNING: {warning}" for warning in warnings), *lines]
    return data, "".join(f"{line}\n" for line in lines)


async def _check_set(admin: Admin, entity: Entity, deleted: Sequence[str]) -> None:
    configs = await admin.configs(entity.kind, entity.name)
    own = {config.name for config in configs if config.source is entity.own_source}
    missing = [name for name in deleted if name not in own]
    if missing:
        raise NotSet(f"Invalid config(s): {','.join(missing)}: not set there")
