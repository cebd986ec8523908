"""Every advertised API has exactly one handler, in one table."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from textwrap import dedent

import pytest

from insync.broker.dispatch import Dispatcher, api_handlers
from insync.sim.virtual_loop import VirtualLoop
from insync.wire.apis import SUPPORTED, Api
from support.sim.one_broker import OneBroker, on_virtual_time


def test_every_advertised_api_has_exactly_one_handler() -> None:
    function = ast.parse(dedent(inspect.getsource(api_handlers))).body[0]
    (table,) = [node for node in ast.walk(function) if isinstance(node, ast.Dict)]
    # The source, because a dict hides a key that is written twice.
    names = [key.attr for key in table.keys if isinstance(key, ast.Attribute)]
    assert Counter(names) == Counter(api.name for api in SUPPORTED)


def test_a_table_without_a_handler_is_refused() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        one = OneBroker(loop)
        await one.start(partitions=1)
        handlers = one.node.handlers
        assert handlers.keys() == SUPPORTED.keys()
        assert len(set(map(id, handlers.values()))) == len(handlers)
        without_produce = dict(handlers)
        del without_produce[Api.PRODUCE]
        with pytest.raises(AssertionError, match="every advertised API has a handler"):
            Dispatcher(without_produce)

    on_virtual_time(scenario)
