"""Throttled-replica lists as KIP-73 writes them, as Kafka writes them, and malformed ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.rules.refusals import BadSetting, BadThrottledReplicas
from insync.rules.throttled_replicas import (
    ID_MAX,
    NO_REPLICAS,
    EveryReplica,
    SomeReplicas,
    ThrottledReplicas,
    effective_rate,
    listing,
    parse,
)
from insync.rules.values import BrokerId, PartitionId


def replica(partition: int, broker: int) -> tuple[PartitionId, BrokerId]:
    return PartitionId(partition), BrokerId(broker)


TWO_REPLICAS = listing([replica(0, 101), replica(1, 102)])

IDS = st.integers(0, 12) | st.integers(0, ID_MAX)
NUMBERS = st.sampled_from(["0", "12", " 3", "4\n", "\u0663", "x", "*", "-5", ""])
ENTRIES = st.tuples(NUMBERS, st.sampled_from([":", "-", "", "::"]), NUMBERS).map("".join)
REPLICAS = st.builds(replica, IDS, IDS)
LISTS: st.SearchStrategy[ThrottledReplicas] = st.just(EveryReplica()) | st.lists(REPLICAS).map(
    listing
)


# --- reading ---


@pytest.mark.parametrize(
    "text",
    [
        "0:101,1:102",
        "0-101,1-102",  # KIP-73, The Invocation Process: [partitionId]-[replicaId]
        "0:101,1-102",
        "0:101, 1:102",  # KIP-73: a blank after the comma
        "  0:101 ,\t1:102  ",
        "1:102,0:101",
        "0:101,1:102,0:101",
    ],
)
def test_the_ways_to_write_the_same_list(text: str) -> None:
    assert parse(text) == TWO_REPLICAS


def test_kip_73s_sample_configuration() -> None:
    listed = parse("0:0,0:1,0:2,1:0,1:1,1:2")
    assert listed == listing(replica(p, b) for p in (0, 1) for b in (0, 1, 2))


@pytest.mark.parametrize("text", ["*", " * "])
def test_a_star_is_every_replica(text: str) -> None:
    assert parse(text) == EveryReplica()


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_list_is_no_replica(text: str) -> None:
    assert parse(text) == NO_REPLICAS


def test_ids_reach_to_the_protocols_32_bits() -> None:
    assert parse("2147483647:2147483647") == listing([replica(2**31 - 1, 2**31 - 1)])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("-1:101", "-1:101"),
        ("0:-101", "0:-101"),
        ("0--101", "0--101"),
        ("0:101,", ""),
        (",0:101", ""),
        ("0:1,,1:2", ""),
        ("0:101,7:", "7:"),
        (":101", ":101"),
        ("0", "0"),
        ("0:1:2", "0:1:2"),
        ("*,0:1", "*"),
        ("0:1,*", "*"),
        ("0:*", "0:*"),
        ("**", "**"),
        ("0x1:2", "0x1:2"),
        ("1.0:2", "1.0:2"),
        ("1_0:2", "1_0:2"),
        ("+1:2", "+1:2"),
        ("a:b", "a:b"),
        ("0:1;1:2", "0:1;1:2"),
        ("0:1 1:2", "0:1 1:2"),
        ("0:1\n1:2", "0:1\n1:2"),
        ("0:1\x00", "0:1\x00"),
        ("[0:1]", "[0:1]"),
        ("\u0660:\u0661", "\u0660:\u0661"),  # Arabic-Indic digits, which int() would take
        ("0\uff1a1", "0\uff1a1"),  # a full-width colon
        ("2147483648:1", "2147483648:1"),
        ("1:99999999999999999999", "1:99999999999999999999"),
    ],
)
def test_an_unreadable_list_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(BadThrottledReplicas) as refusal:
        parse(text)
    assert repr(named) in str(refusal.value)


def test_a_number_of_thousands_of_digits_is_refused_like_any_other() -> None:
    """Python's own limit on reading integers (4300 digits) must not be what answers."""
    with pytest.raises(BadThrottledReplicas):
        parse(f"0:1,{'9' * 5_000}:1")


def test_the_refusal_has_an_example_of_a_valid_list() -> None:
    with pytest.raises(BadThrottledReplicas, match="write partition:broker, for example 0:101"):
        parse("0/101")


def test_the_refusal_of_a_number_too_large_names_the_largest() -> None:
    with pytest.raises(BadThrottledReplicas, match="above 2147483647"):
        parse("0:2147483648")


@pytest.mark.property
@given(text=st.lists(ENTRIES, max_size=3).map(",".join) | st.text())
def test_any_text_is_refused_or_read_and_its_written_form_reads_the_same(text: str) -> None:
    try:
        listed = parse(text)
    except BadThrottledReplicas:
        return
    assert set("".join(text.split())) <= set("0123456789:-,*")
    assert parse(str(listed)) == listed


# --- writing ---


def test_a_list_is_written_in_order_of_partition_then_broker_as_numbers() -> None:
    listed = listing([replica(10, 1), replica(2, 30), replica(2, 4)])
    assert str(listed) == "2:4,2:30,10:1"


@pytest.mark.parametrize(
    ("listed", "text"), [(EveryReplica(), "*"), (NO_REPLICAS, ""), (TWO_REPLICAS, "0:101,1:102")]
)
def test_written_form(listed: ThrottledReplicas, text: str) -> None:
    assert str(listed) == text


@pytest.mark.property
@given(listed=LISTS)
def test_a_written_list_can_be_read_back(listed: ThrottledReplicas) -> None:
    assert parse(str(listed)) == listed


@pytest.mark.property
@given(listed=LISTS)
def test_the_written_form_is_one_that_kafka_accepts(listed: ThrottledReplicas) -> None:
    """kafka-facts 3: ":" only, no blanks, or "*"; entries numerically in order, each once."""
    text = str(listed)
    if text in ("", "*"):
        return
    entries = [tuple(int(number) for number in entry.split(":")) for entry in text.split(",")]
    assert all(character in "0123456789:," for character in text)
    assert entries == sorted(set(entries))


# --- membership ---


def test_only_listed_replicas_are_throttled() -> None:
    """ReplicationQuotaManagerTest.shouldThrottleOnlyDefinedReplicas: {1,2,3} excludes 4."""
    listed = parse("1:7,2:7,3:7")
    throttled = [p for p in range(5) if listed.includes(PartitionId(p), BrokerId(7))]
    assert throttled == [1, 2, 3]
    assert not listed.includes(PartitionId(1), BrokerId(8))


def test_a_wildcard_is_for_its_own_topic_only() -> None:
    """ReplicationQuotaManagerTest.shouldSupportWildcardThrottledReplicas."""
    throttled = {"MyTopic": parse("*"), "MyOtherTopic": parse("")}
    assert throttled["MyTopic"].includes(PartitionId(0), BrokerId(1))
    assert not throttled["MyOtherTopic"].includes(PartitionId(0), BrokerId(1))


@pytest.mark.property
@given(replicas=st.lists(REPLICAS), replica=REPLICAS)
def test_a_list_includes_exactly_what_it_was_made_of(
    replicas: list[tuple[PartitionId, BrokerId]], replica: tuple[PartitionId, BrokerId]
) -> None:
    listed: SomeReplicas = listing(replicas)
    assert all(listed.includes(*one) for one in replicas)
    assert listed.includes(*replica) is (replica in replicas)
    assert EveryReplica().includes(*replica)


# --- the rate that goes with a list: kafka-facts 3, "per-broker overrides cluster default" ---


@pytest.mark.parametrize(
    ("per_broker", "cluster_default", "effective"),
    [
        (None, None, None),
        (None, 7, 7),
        (5, None, 5),
        (5, 7, 5),
        (0, 7, 0),
        (None, 0, 0),
        (5, -1, 5),
    ],
)
def test_a_brokers_own_rate_wins(
    per_broker: int | None, cluster_default: int | None, effective: int | None
) -> None:
    rate = effective_rate(per_broker=per_broker, cluster_default=cluster_default)
    assert rate == effective


@pytest.mark.parametrize(("per_broker", "cluster_default"), [(-1, None), (-1, 7), (None, -1)])
def test_a_negative_rate_is_refused(per_broker: int | None, cluster_default: int | None) -> None:
    with pytest.raises(BadSetting, match="throttle of -1 B/s has no meaning; use 0 or more"):
        effective_rate(per_broker=per_broker, cluster_default=cluster_default)
