"""The errors of batches that were sent behind one with a retriable error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from insync.broker.produce.refused_batches import REFUSALS_MAX, RETRIABLE, RefusedBatches
from insync.sim.virtual_loop import virtual_time
from insync.wire import batches
from insync.wire.apis import Api
from insync.wire.batches import BatchHeader, read_header
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    read_produce_response,
    write_produce_request,
)
from support.sim.one_broker import PRODUCE_VERSION, TOPIC, Client, OneBroker

APPENDED = ErrorCode.none
FULL = ErrorCode.kafka_storage_error
GAP = ErrorCode.out_of_order_sequence_number

Scenario = Callable[[OneBroker, "Sender"], Awaitable[None]]


class Sender:
    """An idempotent producer that sends the batches that a test chooses, in any order."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(
        self, sequence: int, count: int = 1, *, epoch: int = 0, topic: str = TOPIC
    ) -> tuple[ErrorCode, int]:
        """Records whose values are their sequences: the answer, and the offset they were given."""
        batch = numbered(sequence, count, epoch=epoch)
        request = ProduceRequest(None, -1, 1_000, [ProducePartition(topic, 0, batch)])
        body = write_produce_request(PRODUCE_VERSION, request)
        frame, at = await self._client.connection.ask(Api.PRODUCE, PRODUCE_VERSION, [body])
        (result,) = read_produce_response(PRODUCE_VERSION, frame, at).results
        return ErrorCode(result.error), result.base_offset


def numbered(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7) -> bytes:
    return batches.build(
        [(None, b"%d" % number) for number in range(sequence, sequence + count)],
        timestamp_ms=1,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def play(scenario: Scenario) -> None:
    with virtual_time() as loop:
        broker = OneBroker(loop)

        async def playing() -> None:
            await broker.start(partitions=1)
            await scenario(broker, Sender(await broker.client()))

        loop.run_until_complete(playing())


def test_batches_behind_a_refused_one_get_its_error_and_are_sent_again_in_order() -> None:
    async def scenario(broker: OneBroker, sender: Sender) -> None:
        assert await sender.send(0, 3) == (APPENDED, 0)
        broker.disk.is_full = True
        assert await sender.send(3, 3) == (FULL, -1)
        assert await sender.send(6) == (FULL, -1)
        broker.disk.is_full = False
        assert await sender.send(7) == (FULL, -1), "there is room, but the first has to come first"
        assert await sender.send(3, 3) == (APPENDED, 3)
        assert await sender.send(6) == (APPENDED, 6)
        assert await sender.send(7) == (APPENDED, 7)

    play(scenario)


def test_a_new_producer_begins_with_the_batch_that_was_refused() -> None:
    async def scenario(broker: OneBroker, sender: Sender) -> None:
        broker.disk.is_full = True
        assert await sender.send(0, 3) == (FULL, -1)
        broker.disk.is_full = False
        assert await sender.send(3) == (FULL, -1)
        assert await sender.send(0, 3) == (APPENDED, 0)
        assert await sender.send(3) == (APPENDED, 3)

    play(scenario)


def test_a_topic_that_does_not_exist_yet() -> None:
    async def scenario(broker: OneBroker, sender: Sender) -> None:
        unknown = (ErrorCode.unknown_topic_or_partition, -1)
        assert await sender.send(0, 3, topic="new") == unknown
        await broker.create("new", partitions=1)
        assert await sender.send(3, topic="new") == unknown
        assert await sender.send(0, 3, topic="new") == (APPENDED, 0)
        assert await sender.send(3, topic="new") == (APPENDED, 3)

    play(scenario)


def test_a_batch_refused_twice_still_stops_those_behind_it() -> None:
    async def scenario(broker: OneBroker, sender: Sender) -> None:
        assert await sender.send(0) == (APPENDED, 0)
        broker.disk.is_full = True
        for _ in range(3):
            for sequence in range(1, 6):
                assert await sender.send(sequence) == (FULL, -1)
        broker.disk.is_full = False
        for sequence in range(1, 6):
            assert await sender.send(sequence) == (APPENDED, sequence)

    play(scenario)


def test_a_client_that_gave_up_the_refused_batch_is_notified_of_the_gap() -> None:
    async def scenario(broker: OneBroker, sender: Sender) -> None:
        assert await sender.send(0) == (APPENDED, 0)
        broker.disk.is_full = True
        assert await sender.send(1) == (FULL, -1)
        broker.disk.is_full = False
        for sequence in range(2, 6):  # four can have been under way behind it
            assert await sender.send(sequence) == (FULL, -1)
        for sequence in range(6, 9):
            assert await sender.send(sequence) == (GAP, -1)
        assert await sender.send(0, epoch=1) == (APPENDED, 1), "it begins again"
        assert await sender.send(1, epoch=1) == (APPENDED, 2)

    play(scenario)


def test_a_gap_without_a_refused_batch_is_out_of_order() -> None:
    async def scenario(broker: OneBroker, sender: Sender) -> None:
        assert await sender.send(0) == (APPENDED, 0)
        assert await sender.send(2) == (GAP, -1)
        broker.disk.is_full = True
        assert await sender.send(1) == (FULL, -1)
        broker.disk.is_full = False
        assert await sender.send(1) == (APPENDED, 1)
        assert await sender.send(3) == (GAP, -1), "what was refused is there by now"

    play(scenario)


def test_a_duplicate_is_recognised_after_a_refusal() -> None:
    async def scenario(broker: OneBroker, sender: Sender) -> None:
        assert await sender.send(0) == (APPENDED, 0)
        assert await sender.send(1) == (APPENDED, 1)
        broker.disk.is_full = True
        assert await sender.send(2) == (FULL, -1)
        assert await sender.send(1) == (APPENDED, 1)

    play(scenario)


def header_of(sequence: int, *, epoch: int = 0, producer: int = 7) -> BatchHeader:
    header = read_header(numbered(sequence, epoch=epoch, producer=producer))
    assert header is not None
    return header


@pytest.mark.parametrize("code", sorted(RETRIABLE))
def test_each_retriable_error(code: ErrorCode) -> None:
    refused = RefusedBatches()
    refused.note(("t", 0), header_of(5), code)
    assert refused.code_behind(("t", 0), header_of(6)) is code
    assert refused.code_behind(("t", 0), header_of(5)) is None, "that is the batch itself"
    assert refused.code_behind(("t", 1), header_of(6)) is None
    assert refused.code_behind(("t", 0), header_of(6, epoch=1)) is None
    assert refused.code_behind(("t", 0), header_of(6, producer=8)) is None
    refused.forget(("t", 0), 7)
    assert refused.code_behind(("t", 0), header_of(6)) is None
    assert len(refused) == 0


@pytest.mark.parametrize(
    "code", [GAP, ErrorCode.corrupt_message, ErrorCode.message_too_large, ErrorCode.invalid_record]
)
def test_an_error_that_is_not_retriable_is_not_kept(code: ErrorCode) -> None:
    refused = RefusedBatches()
    refused.note(("t", 0), header_of(5), code)
    assert len(refused) == 0


def test_the_number_of_refusals_is_bounded() -> None:
    refused = RefusedBatches()
    for producer in range(REFUSALS_MAX + 10):
        refused.note(("t", 0), header_of(5, producer=producer), FULL)
    refused.note(("t", 0), header_of(5, producer=-1), FULL)
    assert len(refused) == REFUSALS_MAX
    assert refused.code_behind(("t", 0), header_of(6, producer=9)) is None
    assert refused.code_behind(("t", 0), header_of(6, producer=10)) is FULL


def test_a_name_that_no_topic_has_is_not_kept() -> None:
    refused = RefusedBatches()
    refused.note(("t" * 249, 0), header_of(5), ErrorCode.unknown_topic_or_partition)
    refused.note(("t" * 250, 0), header_of(5), ErrorCode.unknown_topic_or_partition)
    refused.note((UUID(int=1), 0), header_of(5), ErrorCode.unknown_topic_id)
    assert len(refused) == 2
