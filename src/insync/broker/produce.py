"""Produce: check the batches, append them, and answer when as many have them as were asked for."""

from __future__ import annotations

from functools import partial

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.broker.refused_batches import RefusedBatches
from insync.broker.replica import Replica
from insync.broker.replicas import Replicas
from insync.broker.server import Reply
from insync.rules.acknowledgement import Verdict, before_append
from insync.storage.errors import OutOfOrderSequence, ProducerFenced, StorageRefusal
from insync.storage.producers import Duplicate
from insync.wire.apis import PRODUCE_VERSIONS
from insync.wire.batches import (
    NO_PRODUCER,
    BatchHeader,
    CorruptBatch,
    check,
    read_header,
    whole_batches,
)
from insync.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    read_produce,
    write_produce_response,
)

ACKS_ALL = -1

ERRORS: dict[Verdict | None, ErrorCode] = {
    Verdict.ENOUGH: ErrorCode.none,
    Verdict.NOT_ENOUGH: ErrorCode.not_enough_replicas,
    Verdict.NOT_ENOUGH_AFTER_APPEND: ErrorCode.not_enough_replicas_after_append,
    Verdict.TIMED_OUT: ErrorCode.request_timed_out,
    None: ErrorCode.not_leader_or_follower,
}


class Refused(Exception):
    """One partition of a request is answered with an error."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class Produce:
    def __init__(self, replicas: Replicas, view: ClusterView) -> None:
        self._replicas = replicas
        self._view = view
        self._refused = RefusedBatches()

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        header = reply.header
        if header.api_version not in PRODUCE_VERSIONS:
            reply.connection.close()
            return
        request = read_produce(header.api_version, frame, header.body_at)
        answer = _Answer(reply, request, len(request.partitions))
        for index, part in enumerate(request.partitions):
            self._produce(request, part, partial(answer.tell, index))
        if request.acks == 0:
            reply.send_nothing()

    def _produce(
        self, request: ProduceRequest, part: ProducePartition, tell: partial[None]
    ) -> None:
        try:
            found, headers, data = self._admit(request, part)
            duplicate = self._duplicate(found, part, headers[0])
            if duplicate is not None:
                last = duplicate + headers[-1].last_offset_delta
                self._answer(request, found, duplicate, last, tell)
                return
            result = found.log.append_leader(
                data, headers, epoch=found.epoch, now_ms=self._replicas.wall_ms()
            )
        except Refused as refused:
            self._refuse(part, refused, tell)
            return
        except StorageRefusal as refusal:  # a full or failing disk
            self._refuse(part, Refused(ErrorCode.kafka_storage_error, str(refusal)), tell)
            return
        if self._refused:
            self._refused.forget((part.topic, part.partition), headers[0].producer_id)
        counts = self._replicas.counts
        counts.bytes_in += result.bytes
        found.bytes_in += result.bytes
        counts.messages_in += result.end - result.base_offset
        self._replicas.appended(found, result.end, size_bytes=result.bytes)
        self._answer(request, found, result.base_offset, result.last_offset, tell)

    def _refuse(self, part: ProducePartition, refused: Refused, tell: partial[None]) -> None:
        self._replicas.counts.produce_failures += 1
        header = read_header(part.records or b"")
        if header is not None:
            self._refused.note((part.topic, part.partition), header, refused.code)
        tell(_result(part, refused.code, message=refused.message))

    def _answer(
        self,
        request: ProduceRequest,
        found: Replica,
        base_offset: int,
        last_offset: int,
        tell: partial[None],
    ) -> None:
        part = request.partitions[tell.args[0]]
        if request.acks != ACKS_ALL:
            is_ours = self._replicas.leader_of(found.key) is found
            code = ErrorCode.none if is_ours else ErrorCode.not_leader_or_follower
            tell(_result(part, code, base_offset, found.log.start))
            return

        def told(verdict: Verdict | None) -> None:
            if verdict is Verdict.ENOUGH and self._replicas.leader_of(found.key) is not found:
                verdict = None  # a leader past its session promises nothing
            tell(_result(part, ERRORS[verdict], base_offset, found.log.start))

        if found.high_watermark > last_offset:
            told(Verdict.ENOUGH)
            return
        self._replicas.await_commit(found, last_offset, timeout_ms=request.timeout_ms, told=told)

    def _admit(
        self, request: ProduceRequest, part: ProducePartition
    ) -> tuple[Replica, list[BatchHeader], memoryview]:
        """The replica and the checked batches; refused with the error the client should see."""
        topic = (
            part.topic if isinstance(part.topic, str) else self._view.topic_names.get(part.topic)
        )
        if topic is None:
            raise Refused(ErrorCode.unknown_topic_id)
        key = (topic, part.partition)
        if key not in self._view.states:
            raise Refused(ErrorCode.unknown_topic_or_partition)
        found = self._replicas.leader_of(key)
        if found is None or found.term is None:
            raise Refused(ErrorCode.not_leader_or_follower)
        if request.acks not in (0, 1, ACKS_ALL):
            raise Refused(ErrorCode.invalid_required_acks)
        if request.acks == ACKS_ALL:
            verdict = before_append(found.term.isr, min_isr=found.min_isr)
            if verdict is not Verdict.ENOUGH:
                raise Refused(ERRORS[verdict])
        # A frame is its reader's own: the batches get their offsets stamped in where they lie.
        data = memoryview(part.records or b"")
        return found, _checked(data, found.batch_bytes_max), data

    def _duplicate(self, found: Replica, part: ProducePartition, header: BatchHeader) -> int | None:
        """The offset an idempotent producer's batch was given before; refused if out of order."""
        if header.producer_id == NO_PRODUCER:
            return None
        behind = self._refused.code_behind((part.topic, part.partition), header)
        producers = found.log.producers
        try:
            checked = producers.check(header)
        except OutOfOrderSequence as refusal:
            code = ErrorCode.out_of_order_sequence_number if behind is None else behind
            raise Refused(code, str(refusal)) from None
        except ProducerFenced as refusal:
            raise Refused(ErrorCode.invalid_producer_epoch, str(refusal)) from None
        except StorageRefusal as refusal:
            raise Refused(ErrorCode.kafka_storage_error, str(refusal)) from None
        if isinstance(checked, Duplicate):
            return checked.base_offset
        if behind is not None and producers.get(header.producer_id) is None:
            raise Refused(behind, "the batch before it has to come first")
        return None


def _checked(data: memoryview, bytes_max: int) -> list[BatchHeader]:
    try:
        headers = list(whole_batches(data))
        if not headers or headers[-1].end_position != len(data):
            raise Refused(ErrorCode.corrupt_message, "no whole batch")
        for header in headers:
            if header.size > bytes_max:
                raise Refused(
                    ErrorCode.message_too_large,
                    f"a batch of {header.size} bytes; {bytes_max} at most",
                )
            check(data, header)
    except CorruptBatch as refusal:
        raise Refused(ErrorCode.corrupt_message, str(refusal)) from None
    if len(headers) > 1 and any(header.producer_id != NO_PRODUCER for header in headers):
        raise Refused(ErrorCode.invalid_record, "an idempotent request has one batch per partition")
    if any(
        header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0)
        for header in headers
    ):
        raise Refused(ErrorCode.invalid_record, "an idempotent batch has a sequence and an epoch")
    if any(header.is_transactional or header.is_control for header in headers):
        raise Refused(ErrorCode.unsupported_for_message_format, "transactions are not offered")
    return headers


def _result(
    part: ProducePartition,
    code: ErrorCode,
    base_offset: int = -1,
    log_start: int = -1,
    message: str | None = None,
) -> ProduceResult:
    is_well = code is ErrorCode.none
    return ProduceResult(
        part.topic,
        part.partition,
        code,
        base_offset if is_well else -1,
        log_start=log_start,
        error_message=message,
    )


class _Answer:
    """Collects the results of one request's partitions, and answers when it has them all."""

    def __init__(self, reply: Reply, request: ProduceRequest, missing: int) -> None:
        self._reply = reply
        self._is_silent = request.acks == 0
        self._results: list[ProduceResult | None] = [None] * missing
        self._missing = missing

    def tell(self, index: int, result: ProduceResult) -> None:
        self._results[index] = result
        self._missing -= 1
        if self._missing == 0 and not self._is_silent:
            results = [result for result in self._results if result is not None]
            version = self._reply.header.api_version
            self._reply.send([write_produce_response(version, results)])
