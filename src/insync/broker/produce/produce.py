"""Produce: check the batches, append them, and acknowledge them as `acks` requires."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.broker.produce.refused_batches import RefusedBatches
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.server.server import Reply
from insync.rules.acknowledgement import Verdict, before_append
from insync.storage.errors import (
    OffsetOverflow,
    OutOfOrderSequence,
    ProducerFenced,
    StorageRefusal,
)
from insync.storage.producers import Duplicate
from insync.wire.apis import PRODUCE_VERSIONS
from insync.wire.batches import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    NO_PRODUCER,
    RECORD_BYTES_MIN,
    BatchHeader,
    CorruptBatch,
    InvalidBatch,
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

Complete = Callable[[ProduceResult], None]

ERRORS: dict[Verdict | None, ErrorCode] = {  # None: this broker no longer leads
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
        self._refused_batches = RefusedBatches()

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        header = reply.header
        if header.api_version not in PRODUCE_VERSIONS:
            reply.connection.close()
            return
        request = read_produce(header.api_version, frame, header.body_at)
        response = _Response(reply, request)
        for index, produced in enumerate(request.partitions):
            self._produce(request, produced, partial(response.set_result, index))
        if request.acks == 0:
            reply.send_nothing()

    def _produce(
        self, request: ProduceRequest, produced: ProducePartition, complete: Complete
    ) -> None:
        try:
            replica, header, records = self._check(request, produced)
            base_offset = self._offset_of_duplicate(replica, produced, header)
            if base_offset is not None:
                last_offset = base_offset + header.last_offset_delta
                self._acknowledge(
                    request,
                    produced,
                    replica,
                    complete,
                    base_offset=base_offset,
                    last_offset=last_offset,
                )
                return
            result = replica.log.append_leader(
                records, (header,), epoch=replica.epoch, now_ms=self._replicas.wall_ms()
            )
        except Refused as refused:
            self._refuse(produced, refused, complete)
            return
        except OffsetOverflow as refusal:  # not an error that clients retry: a retry would fail too
            self._refuse(produced, Refused(ErrorCode.unknown_server_error, str(refusal)), complete)
            return
        except StorageRefusal as refusal:  # a full or failing disk
            self._refuse(produced, Refused(ErrorCode.kafka_storage_error, str(refusal)), complete)
            return
        if self._refused_batches:
            self._refused_batches.forget((produced.topic, produced.partition), header.producer_id)
        counts = self._replicas.counters
        counts.bytes_in += result.bytes
        replica.count_produced(result.bytes)
        counts.messages_in += result.end - result.base_offset
        self._replicas.leading.on_append(replica, result.end, size_bytes=result.bytes)
        self._acknowledge(
            request,
            produced,
            replica,
            complete,
            base_offset=result.base_offset,
            last_offset=result.last_offset,
        )

    def _refuse(self, produced: ProducePartition, refused: Refused, complete: Complete) -> None:
        self._replicas.counters.produce_failures += 1
        header = read_header(produced.records or b"")
        if header is not None:
            self._refused_batches.note((produced.topic, produced.partition), header, refused.code)
        complete(_result(produced, refused.code, message=refused.message))

    def _acknowledge(
        self,
        request: ProduceRequest,
        produced: ProducePartition,
        replica: Replica,
        complete: Complete,
        *,
        base_offset: int,
        last_offset: int,
    ) -> None:
        """Complete the partition's result now, or with acks=all when its records are committed."""
        if request.acks != ACKS_ALL:
            is_leader = self._replicas.leader_of(replica.key) is replica
            code = ErrorCode.none if is_leader else ErrorCode.not_leader_or_follower
            complete(_result(produced, code, base_offset, replica.log.start))
            return

        def on_verdict(verdict: Verdict | None) -> None:
            if verdict is Verdict.ENOUGH and self._replicas.leader_of(replica.key) is not replica:
                verdict = None  # a leader whose session has ended acknowledges nothing
            complete(_result(produced, ERRORS[verdict], base_offset, replica.log.start))

        if replica.high_watermark > last_offset:
            on_verdict(replica.judge_committed(last_offset))
            return
        self._replicas.await_commit(
            replica, last_offset, timeout_ms=request.timeout_ms, on_verdict=on_verdict
        )

    def _check(
        self, request: ProduceRequest, produced: ProducePartition
    ) -> tuple[Replica, BatchHeader, memoryview]:
        """The replica, and the checked header and bytes of the batch; or `Refused`."""
        topic = (
            produced.topic
            if isinstance(produced.topic, str)
            else self._view.topic_names.get(produced.topic)
        )
        if topic is None:
            raise Refused(ErrorCode.unknown_topic_id)
        key = (topic, produced.partition)
        if key not in self._view.states:
            raise Refused(ErrorCode.unknown_topic_or_partition)
        replica = self._replicas.leader_of(key)
        if replica is None or replica.term is None:
            raise Refused(ErrorCode.not_leader_or_follower)
        if request.acks not in (0, 1, ACKS_ALL):
            raise Refused(ErrorCode.invalid_required_acks)
        if request.acks == ACKS_ALL:
            verdict = before_append(replica.term.isr, min_isr=replica.min_isr_to_acknowledge)
            if verdict is not Verdict.ENOUGH:
                raise Refused(ERRORS[verdict])
        if replica.log.has_failed:  # it may have lost batches that it still has as duplicates
            raise Refused(ErrorCode.kafka_storage_error, "the log has failed; restart the broker")
        # No other code uses the frame: the offset is written into the batch in place.
        records = memoryview(produced.records or b"")
        return replica, _check_batch(records, replica.batch_bytes_max), records

    def _offset_of_duplicate(
        self, replica: Replica, produced: ProducePartition, header: BatchHeader
    ) -> int | None:
        """The offset of an idempotent producer's batch if it was appended before, else None.

        A batch that is out of order is refused.
        """
        if header.producer_id == NO_PRODUCER:
            return None
        code_behind = self._refused_batches.code_behind(
            (produced.topic, produced.partition), header
        )
        producers = replica.log.producers
        try:
            checked = producers.check(header)
        except OutOfOrderSequence as refusal:
            code = code_behind or ErrorCode.out_of_order_sequence_number
            raise Refused(code, str(refusal)) from None
        except ProducerFenced as refusal:
            raise Refused(ErrorCode.invalid_producer_epoch, str(refusal)) from None
        except StorageRefusal as refusal:
            raise Refused(ErrorCode.kafka_storage_error, str(refusal)) from None
        if isinstance(checked, Duplicate):
            return checked.base_offset
        if code_behind is not None and producers.get(header.producer_id) is None:
            raise Refused(code_behind, "the batch before it has to come first")
        return None


def _check_batch(data: memoryview, bytes_max: int) -> BatchHeader:
    """The header of the one batch in `data`, refused as Apache Kafka's LogValidator would."""
    try:
        batches = whole_batches(data)
        header = next(batches, None)
        if header is None:
            raise Refused(ErrorCode.invalid_record, "no whole batch")
        if next(batches, None) is not None:
            raise Refused(ErrorCode.invalid_record, "more than one batch for the partition")
        if header.end_position != len(data):
            raise Refused(ErrorCode.corrupt_message, "bytes after the batch")
        if header.size > bytes_max:
            raise Refused(
                ErrorCode.message_too_large, f"a batch of {header.size} bytes; {bytes_max} at most"
            )
        check(data, header)
    except InvalidBatch as refusal:
        raise Refused(ErrorCode.invalid_record, str(refusal)) from None
    except CorruptBatch as refusal:
        raise Refused(ErrorCode.corrupt_message, str(refusal)) from None
    records_max = (header.size - HEADER_BYTES) // RECORD_BYTES_MIN
    if not header.attributes & COMPRESSION_MASK and header.record_count > records_max:
        raise Refused(
            ErrorCode.invalid_record,
            f"{header.record_count} records; {header.size} bytes hold {records_max} at most",
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise Refused(ErrorCode.invalid_record, "an idempotent batch has a sequence and an epoch")
    if header.is_transactional or header.is_control:
        raise Refused(ErrorCode.unsupported_for_message_format, "transactions are not offered")
    return header


def _result(
    produced: ProducePartition,
    code: ErrorCode,
    base_offset: int = -1,
    log_start: int = -1,
    message: str | None = None,
) -> ProduceResult:
    is_appended = code is ErrorCode.none
    return ProduceResult(
        produced.topic,
        produced.partition,
        code,
        base_offset if is_appended else -1,
        log_start=log_start,
        error_message=message,
    )


class _Response:
    """Collects the results of a request's partitions, and is sent when it has them all."""

    def __init__(self, reply: Reply, request: ProduceRequest) -> None:
        self._reply = reply
        self._is_sent = request.acks != 0
        self._results: list[ProduceResult | None] = [None] * len(request.partitions)
        self._missing = len(request.partitions)

    def set_result(self, index: int, result: ProduceResult) -> None:
        self._results[index] = result
        self._missing -= 1
        if self._missing == 0 and self._is_sent:
            results = [result for result in self._results if result is not None]
            version = self._reply.header.api_version
            self._reply.send([write_produce_response(version, results)])
