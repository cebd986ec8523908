"""Which in-sync rule a topic's leaders apply: from a broker's settings and the topic's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from insync.broker.settings import TOPIC_SETTINGS, Settings
from insync.rules.refusals import BadSetting
from insync.rules.settings import InSyncRule, InSyncSettings, in_sync_rule

logger = logging.getLogger(__name__)

_FIELDS: Final = {field.name.replace("_", "."): field for field in fields(InSyncSettings)}


def rule_of(settings: Settings) -> InSyncRule:
    """The rule these settings ask for; a combination without a meaning is refused."""
    values: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        # For a setting without a default, not to set it means something else than any value.
        may_be_unset = field.default is None
        if settings.is_given(name) or not may_be_unset:
            values[field.name] = settings[name]
    return in_sync_rule(InSyncSettings(**values))


def concerns_rule(overrides: Mapping[str, str]) -> bool:
    """Whether a topic with these settings may have a rule of its own."""
    return any(
        name in TOPIC_SETTINGS and TOPIC_SETTINGS[name].name in _FIELDS for name in overrides
    )


class Rules:
    """The rules of one broker's topics. Each warning about them is logged once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def of_topic(self, topic: str, merged: Settings, broker: Settings) -> InSyncRule:
        """The topic's rule, or as much of it as is consistent with the broker's own settings.

        The broker that handles a change refuses what contradicts its own settings. The file of
        another broker may differ, and that broker has to lead the topic all the same.
        """
        rule = self._rule_of(merged, f"{topic}: its own settings are ignored")
        rule = rule or self._rule_of(broker, "settings changed at run time are ignored")
        rule = rule or rule_of(broker.from_file())
        for warning in rule.warnings:
            self._warn(warning)
        return rule

    def _rule_of(self, settings: Settings, otherwise: str) -> InSyncRule | None:
        try:
            return rule_of(settings)
        except BadSetting as refusal:
            self._warn(f"{otherwise}: {refusal}")
            return None

    def _warn(self, warning: str) -> None:
        if warning not in self._logged:
            self._logged.add(warning)
            logger.warning("%s", warning)
