"""The enumerations of DescribeConfigs and the AlterConfigs requests."""

from __future__ import annotations

from enum import IntEnum


class Resource(IntEnum):
    """What may have settings of its own, of the kinds that Insync supports."""

    TOPIC = 2
    BROKER = 4  # by its id; without a name: the default of all brokers


class ConfigSource(IntEnum):
    """Where a value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:  # noqa: ARG003
        return cls.UNKNOWN  # of a newer broker


class ConfigType(IntEnum):
    """The type of a value, for tools that show it."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Alteration(IntEnum):
    """What IncrementalAlterConfigs does to one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
