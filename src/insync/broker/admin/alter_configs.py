"""AlterConfigs and IncrementalAlterConfigs (KIP-339): settings changed while brokers run."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.broker.admin.config_changes import ConfigChanges, StoredConfig
from insync.broker.admin.config_resources import ConfigRefused, SettingsTable
from insync.broker.settings_table import find, text_of
from insync.rules.refusals import BadSetting
from insync.wire.any_version import Values
from insync.wire.configs import Alteration

NEVER_SET: Final = frozenset({"replica.alter.log.dirs.io.max.bytes.per.second"})
"""Brokers have one log directory, so this setting does not exist here. Kafka's tool deletes it in
the same request as the throttles; a refusal would leave the throttles in place."""


class AlterConfigs:
    """Replaces all settings of a resource: a setting that is not named loses its value."""

    def __init__(self, changes: ConfigChanges) -> None:
        self._changes = changes

    async def answer(self, request: Any) -> Values:
        return await self._changes.change_all(request, _replaced)


class IncrementalAlterConfigs:
    """Changes the named settings of a resource; the others keep their values."""

    def __init__(self, changes: ConfigChanges) -> None:
        self._changes = changes

    async def answer(self, request: Any) -> Values:
        return await self._changes.change_all(request, _altered)


def _replaced(configs: Any, _before: StoredConfig, table: SettingsTable) -> dict[str, str]:
    return {config.name: _parsed_value(config, table) for config in configs}


def _altered(configs: Any, before: StoredConfig, table: SettingsTable) -> dict[str, str]:
    after = dict(before)
    for alteration in configs:
        _alter(after, alteration, table)
    return after


def _parsed_value(config: Any, table: SettingsTable) -> str:
    """The requested value in the form in which it is stored."""
    setting = find(config.name, table)
    if config.value is None:
        raise ConfigRefused(ErrorCode.invalid_request, f"{config.name} has no value")
    return text_of(setting.parse(config.value))


def _alter(config: dict[str, str], alteration: Any, table: SettingsTable) -> None:
    """Apply one alteration to a stored config."""
    name, operation = alteration.name, alteration.config_operation
    if operation == Alteration.DELETE:
        if config.pop(name, None) is None and name not in NEVER_SET:
            find(name, table)  # deleting an unset setting is fine; an unknown name is a mistake
    elif operation == Alteration.SET:
        config[name] = _parsed_value(alteration, table)
    elif operation in (Alteration.APPEND, Alteration.SUBTRACT):
        if not find(name, table).is_list:
            raise BadSetting(f"{name} is no list: APPEND and SUBTRACT need one")
        # In order, without repetition: a throttled-replica list may have thousands of items.
        items = dict.fromkeys(item for item in config.get(name, "").split(",") if item)
        named = dict.fromkeys(_parsed_value(alteration, table).split(","))
        if operation == Alteration.APPEND:
            items |= named
        else:
            items = {item: None for item in items if item not in named}
        config[name] = text_of(find(name, table).parse(",".join(items)))
    else:
        raise ConfigRefused(ErrorCode.invalid_request, f"there is no operation {operation}")
