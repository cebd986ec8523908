"""What every `--help` has: whole summaries, and an example to copy.

The examples stand together so that they read as one tour of the commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import cleandoc
from textwrap import indent
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typer._click import Command

# By the words of the command; several lines are several examples.
EXAMPLES: Final[Mapping[str, str]] = {
    "insync": """
        insync explain kip-501
        insync cluster start --data-dir /tmp/insync --detach
        insync replicas -b 127.0.0.1:9092 --watch
        """,
    "insync explain": """
        insync explain
        insync explain kip-501
        insync explain ./mine.txt --json
        """,
    "insync demo": """
        insync demo
        insync demo --telemetry /tmp/telemetry
        """,
    "insync broker": """
        insync broker --config broker-1.properties --set num.partitions=3
        insync broker --config broker-1.properties --new-directory
        """,
    "insync cluster": """
        insync cluster start --data-dir /tmp/insync --detach
        insync cluster status --data-dir /tmp/insync
        insync cluster stop --data-dir /tmp/insync
        """,
    "insync cluster start": """
        insync cluster start --data-dir /tmp/insync
        insync cluster start --data-dir /tmp/insync --brokers 5 --port 19092 --detach
        insync cluster start --data-dir /tmp/insync --set replica.lag.time.max.ms=1500
        """,
    "insync cluster status": """
        insync cluster status --data-dir /tmp/insync
        """,
    "insync cluster restart": """
        insync cluster restart --data-dir /tmp/insync --broker 2
        """,
    "insync cluster stop": """
        insync cluster stop --data-dir /tmp/insync
        """,
    "insync strays": """
        insync strays --log-dir /tmp/insync/broker-1
        insync strays --log-dir /tmp/insync/broker-1 --delete orders-0.1760000000000-stray
        """,
    "insync topics": """
        insync topics -b 127.0.0.1:9092 --list
        insync topics -b 127.0.0.1:9092 --create --topic orders --partitions 6
        insync topics -b 127.0.0.1:9092 --describe --under-replicated-partitions
        insync topics -b 127.0.0.1:9092 --elect-damaged
        """,
    "insync configs": """
        insync configs -b 127.0.0.1:9092 --describe --topic orders --all
        insync configs -b 127.0.0.1:9092 --alter --topic orders \\
          --add-config min.insync.replicas=2
        """,
    "insync reassign": """
        insync reassign -b 127.0.0.1:9092 --generate \\
          --topics-to-move-json-file topics.json --broker-list 1,2,3
        insync reassign -b 127.0.0.1:9092 --plan plan.json --network 1Gbit
        insync reassign -b 127.0.0.1:9092 --execute \\
          --reassignment-json-file plan.json --throttle 10MB --watch
        insync reassign -b 127.0.0.1:9092 --sweep
        """,
    "insync replicas": """
        insync replicas -b 127.0.0.1:9092
        insync replicas -b 127.0.0.1:9092 --topic orders --all
        insync replicas -b 127.0.0.1:9092 --watch --json
        """,
    "insync telemetry": """
        insync telemetry export -b 127.0.0.1:9092 --out /tmp/telemetry
        """,
    "insync telemetry export": """
        insync telemetry export -b 127.0.0.1:9092 --out /tmp/telemetry
        """,
    "insync throttle": """
        insync throttle -b 127.0.0.1:9092 --broker 3 --bootstrap --throttle 20MB
        """,
    "insync pipeline": """
        insync pipeline report --source 127.0.0.1:9092 --out /tmp/analysis
        """,
    "insync pipeline raw": """
        insync pipeline raw --source 127.0.0.1:9092 --out /tmp/tables
        """,
    "insync pipeline lag": """
        insync pipeline lag --source /tmp/telemetry --out /tmp/analysis --bucket-ms 1000
        """,
    "insync pipeline episodes": """
        insync pipeline episodes --source /tmp/telemetry --out /tmp/analysis
        """,
    "insync pipeline incidents": """
        insync pipeline incidents --source /tmp/telemetry --out /tmp/analysis
        """,
    "insync pipeline what-if": """
        insync pipeline what-if --source /tmp/telemetry --out /tmp/analysis \\
          --policies caught-up,pending-reads --lag-time-max-ms 1000,10000
        """,
    "insync pipeline throttle": """
        insync pipeline throttle --source /tmp/telemetry --out /tmp/analysis
        """,
    "insync pipeline plans": """
        insync pipeline plans --source /tmp/telemetry --out /tmp/analysis \\
          --network 1Gbit --max-impact 30% --max-moves 10
        """,
    "insync pipeline health": """
        insync pipeline health --source /tmp/telemetry --out /tmp/analysis
        """,
    "insync pipeline report": """
        insync pipeline report --source /tmp/telemetry --out /tmp/analysis
        """,
    "insync pipeline stream": """
        insync pipeline stream --source 127.0.0.1:9092 --out /tmp/tables
        """,
}


def complete_help(command: Command, words: str = "insync") -> None:
    """Give a command and those below it their examples, and summaries that are not cut."""
    for name, each in _walk(command, words):
        first_paragraph = (each.help or "").split("\n\n", maxsplit=1)[0]
        each.short_help = " ".join(first_paragraph.split())
        each.epilog = _examples(name)


def _walk(command: Command, words: str) -> Iterator[tuple[str, Command]]:
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _walk(below, f"{words} {name}")


def _examples(name: str) -> str | None:
    text = EXAMPLES.get(name)
    # \b: the paragraph is not wrapped.
    return None if text is None else f"\b\nExamples:\n{indent(cleandoc(text), '  ')}"
