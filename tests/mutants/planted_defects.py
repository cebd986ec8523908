"""Defects that earlier versions had, put back one at a time."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

DIRECTORY = "storage/directory.py"
OPEN_LOGS = "storage/open_logs.py"
REPLICAS = "broker/replication/replicas.py"
NAMESAKES = "tests/broker/replication/test_topics_of_the_same_name.py"
OFFLINE_REPLICAS = "broker/replication/offline_replicas.py"
ISR_COMMITS = "broker/replication/isr_commits.py"
FETCHER = "broker/replication/leader_fetcher.py"
UNEXPECTED = "tests/broker/test_unexpected_errors.py"
GOES_BACK = "tests/node/test_metadata_goes_back.py"
DELETING = "tests/broker/replication/test_deleting_topics.py"

DEFECTS = (
    Mutant(
        name="damaged-replica-leads",
        title="A damaged replica may lead",
        breaks="The intact replicas truncate to what is left of it.",
        is_protocol=True,
        finders=("tests/rules/test_election.py", "tests/rules/test_eligible.py"),
        edits=(
            Edit("rules/election.py", "able = live - failed - damaged", "able = live - failed"),
            Edit(
                "rules/election.py",
                "isr = tuple(member for member in isr if member not in damaged) or isr",
                "isr = tuple(member for member in isr if member in isr)",
            ),
            Edit(
                OFFLINE_REPLICAS,
                "        if replica.key not in self._directory.damaged:\n            return True\n",
                "        if replica.key:\n            return True\n",
            ),
        ),
    ),
    Mutant(
        name="missing-log-unnoticed",
        title="A start does not compare the logs with the replica checkpoint",
        breaks="A log that is missing, was set aside or lost its tail stays in the ISR and leads.",
        is_protocol=True,
        finders=("tests/storage/test_replica_checkpoint.py", "tests/storage/test_damaged_logs.py"),
        edits=(
            Edit(
                OPEN_LOGS,
                "        for key, replica in self.replica_checkpoint.replicas.items():\n"
                "            self._check_against_checkpoint(key, replica)",
                "        for key, replica in dict[Partition, CheckpointedReplica]().items():\n"
                "            self._check_against_checkpoint(key, replica)",
            ),
        ),
    ),
    Mutant(
        name="damaged-segments-believed",
        title="A start does not compare segments with the inventory, their seals and neighbours",
        breaks="A segment that was cut, removed or garbled is served, and spreads.",
        is_protocol=True,
        finders=("tests/storage/test_damaged_logs.py",),
        edits=(
            Edit(
                "storage/recovery.py",
                "    check.check_complete_segments()\n"
                "    is_head_sound = check.check_last_head()\n",
                "    is_head_sound = True\n",
            ),
            Edit(
                "storage/recovery.py",
                "    damage = check.find_damage(path)\n",
                "    damage = None if check else check.find_damage(path)\n",
            ),
        ),
    ),
    Mutant(
        name="old-epochs-believed",
        title="Recovery believes an epoch checkpoint that does not fit the log",
        breaks="The leader answers where an epoch ended with what an older log had.",
        finders=("tests/storage/test_damaged_logs.py", "tests/storage/test_log_histories.py"),
        edits=(
            Edit(
                "storage/recovery.py",
                "is_known = inventory.epochs == epochs_checksum(\n"
                "            stored, start=inventory.start, end=inventory.end\n        )",
                "is_known = inventory.epochs is not None",
            ),
            Edit(
                "storage/recovery.py",
                "            head.leader_epoch in (UNKNOWN, stored.epoch_at(Offset(base)))\n",
                "            head.leader_epoch is not None and stored.epoch_at(Offset(base))\n",
            ),
        ),
    ),
    Mutant(
        name="failed-log-keeps-role",
        title="A failed log is not reported",
        breaks="A leader that cannot write stays leader; a follower stays in the ISR.",
        finders=("tests/broker/replication/test_failed_logs.py",),
        edits=(
            Edit(
                OFFLINE_REPLICAS,
                "        self._stop_replica(replica)\n"
                "        self._reports.report_failure(replica)\n",
                "        self._partitions.get(key)\n",
            ),
        ),
    ),
    Mutant(
        name="strays-deleted",
        title="A log that the metadata store does not know is deleted, not set aside",
        breaks="A store that goes back makes every broker delete what it has.",
        finders=(GOES_BACK, "tests/storage/test_strays.py"),
        edits=(
            Edit(
                REPLICAS,
                "        stray = self.directory.set_aside(*key, now_ms=self.wall_ms())\n",
                "        self.directory.delete(*key)\n        stray = key[0]\n",
            ),
        ),
    ),
    Mutant(
        name="older-store-accepted",
        title="A store that is older than what a broker had read from it is accepted",
        breaks="Leaders and epochs go back, and replicas truncate acknowledged records.",
        finders=(GOES_BACK,),
        edits=(
            Edit(
                "node/admission.py",
                "        if not history.is_older:\n            return\n",
                "        if not history.is_older or history.is_older:\n            return\n",
            ),
        ),
    ),
    Mutant(
        name="other-directory-accepted",
        title="Another data directory under the same broker id replaces the first one unasked",
        breaks="An empty folder takes the place of a replica that is in sync.",
        finders=("tests/node/test_new_directory.py",),
        edits=(
            Edit(
                "node/admission.py",
                "        if is_another and not self._accepted.new_directory:\n",
                "        is_another = False\n"
                "        if is_another and not self._accepted.new_directory:\n",
            ),
            Edit(
                "node/registration.py",
                "if replaced.directory_id not in (None, self._directory.directory_id):",
                "if replaced.directory_id == path:",
            ),
            Edit(
                "node/registration.py",
                "        if record.directory_id in (None, self._directory.directory_id):\n"
                "            return\n",
                "        if record.directory_id in (None, record.directory_id):\n"
                "            return\n",
            ),
        ),
    ),
    Mutant(
        name="one-partition-stops-fetcher",
        title="An answer for one partition that cannot be applied ends the whole fetch",
        breaks="Replication of every other partition from that leader stops or is slow.",
        finders=(UNEXPECTED, "tests/broker/replication/test_follower_fetchers.py"),
        edits=(
            Edit(
                FETCHER,
                "        except (StorageRefusal, CorruptBatch) as refusal:  # the other partitions "
                "go on\n            self._handle_refusal(partition, refusal, _action_of(answer))\n"
                "        except Exception:\n"
                '            logger.exception("%s-%d: the leader\'s answer could not be applied", '
                "*replica.key)\n            self._back_off(partition)\n",
                "        finally:\n            pass\n",
            ),
        ),
    ),
    Mutant(
        name="one-partition-stops-fetch",
        title="A partition that cannot be read ends the answer to the whole fetch",
        breaks="No follower gets anything of any partition of that leader.",
        finders=(UNEXPECTED,),
        edits=(
            Edit(
                "broker/fetch/pending_fetch.py",
                "                except Exception:  # the other partitions of the response go on\n",
                "                except MemoryError:\n",
            ),
        ),
    ),
    Mutant(
        name="batches-too-large-to-replicate",
        title="A topic may allow batches that no answer to a follower can carry",
        breaks="One such batch stops replication of every partition from that leader.",
        finders=("tests/broker/test_settings_table.py",),
        edits=(
            Edit(
                "broker/settings_table.py",
                "maximum=BATCH_BYTES_MAX,",
                "maximum=BATCH_BYTES_MAX * 2,",
            ),
        ),
    ),
    Mutant(
        name="deletion-lists-directory",
        title="Each deleted log lists the whole directory",
        breaks="Deleting thousands of partitions blocks the event loop until sessions end.",
        finders=(DELETING,),
        edits=(
            Edit(
                "storage/renamed_logs.py",
                "        number, self._next_number = self._next_number, self._next_number + 1\n",
                "        number = len(self._disk.list(self._path))\n",
            ),
        ),
    ),
    Mutant(
        name="deletion-in-one-turn",
        title="All partitions of a deleted topic are dropped in one turn of the event loop",
        breaks="The broker serves nothing meanwhile, and its session ends.",
        finders=(DELETING,),
        edits=(Edit(REPLICAS, "DROPS_PER_TURN = 100", "DROPS_PER_TURN = 1 << 30"),),
    ),
    Mutant(
        name="controller-keeps-role",
        title="An unexpected error ends the controller's task, which keeps its role",
        breaks="No partition gets a leader until that broker is restarted.",
        finders=(UNEXPECTED,),
        edits=(
            Edit(
                "controller/controller.py",
                "            except Exception:\n                logger.exception(\n"
                '                    "controller: an unexpected error;',
                "            except MemoryError:\n                logger.exception(\n"
                '                    "controller: an unexpected error;',
            ),
        ),
    ),
    Mutant(
        name="isr-change-stays-pending",
        title="An unexpected error ends the task that writes an ISR change",
        breaks="The change stays pending, and the high watermark stands still for good.",
        finders=(UNEXPECTED, "tests/broker/replication/test_isr_commits.py"),
        edits=(
            Edit(
                "broker/replication/store_tasks.py",
                "        except Exception:\n",
                "        except MemoryError:\n",
            ),
        ),
    ),
    Mutant(
        name="session-without-reads",
        title="A session is alive by its heartbeats alone, also if the store cannot be read",
        breaks="A deposed leader acknowledges acks=1 for as long as it cannot read the store.",
        finders=("tests/metadata/test_sqlite.py",),
        edits=(
            Edit(
                "metadata/sqlite.py",
                "silent_ms = max(self._monitor.silent_for_ms(now_ms), now_ms - self._read_at_ms)",
                "silent_ms = self._monitor.silent_for_ms(now_ms)",
            ),
        ),
    ),
    Mutant(
        name="read-ends-after-term",
        title="A read that ends after the term of its leader is an error",
        breaks="The connection of the follower ends, with the fetches of every partition.",
        finders=("tests/broker/fetch", "tests/broker/replication"),
        edits=(
            Edit(
                "broker/fetch/pending_read.py",
                "        if term is None or term.epoch != self._epoch or follower not in "
                "term.followers:\n            return\n        is_pending",
                '        assert term is not None, "no term ends during a read"\n'
                "        if term.epoch != self._epoch or follower not in term.followers:\n"
                "            return\n        is_pending",
            ),
        ),
    ),
    Mutant(
        name="no-producer-id-closes",
        title="InitProducerId without the store closes the connection",
        breaks="The producer gives up instead of trying again.",
        finders=(UNEXPECTED,),
        edits=(
            Edit(
                "broker/produce/init_producer_id.py",
                "        except Refusal as refusal:  # by the store;",
                "        except MemoryError as refusal:  # by the store;",
            ),
        ),
    ),
    Mutant(
        name="truncates-while-joining",
        title="A damaged follower truncates while a step that lets it join may be on its way",
        breaks="It is in the ISR with an empty log, and may lead.",
        is_protocol=True,
        finders=("tests/node/test_scrub.py", "tests/controller/test_partition_state_writes.py"),
        edits=(
            Edit(
                "node/scrub.py",
                " or not self._replicas.offline.forbid_joining(key):",
                ":",
            ),
            Edit(
                "node/scrub.py",
                "        if self._replicas.offline.forbid_joining(key):\n"
                "            self._truncations",
                "        if damage.keep_to >= 0:\n            self._truncations",
            ),
            Edit(
                ISR_COMMITS,
                "            if damage is None:\n"
                "                checks.append(CheckAbsent(path))\n"
                "            elif not OfflineReplica.decode(damage.value).may_join:\n"
                "                return None\n"
                "            else:  # it has everything again: from now on it may lead, too\n",
                "            if damage is not None:\n",
            ),
        ),
    ),
    Mutant(
        name="late-step-of-former-topic",
        title="A step of the controller is not conditional on the topics' ids",
        breaks="A topic created again gets the state of the former one, and its logs are deleted.",
        finders=(NAMESAKES,),
        edits=(
            Edit(
                "controller/controller.py",
                "step += [topics[name] for name in names if name in topics]",
                "step += [topics[name] for name in names if name in ()]",
            ),
        ),
    ),
    Mutant(
        name="late-partitions-of-former-topic",
        title="New partitions are not conditional on the topic's id",
        breaks="A topic created again gets the id of the former one, and its logs are deleted.",
        finders=(NAMESAKES,),
        edits=(
            Edit(
                "broker/admin/topics.py",
                "                Check(paths.topic_id(topic.topic_id)),"
                "  # not of a topic created again meanwhile\n",
                "",
            ),
        ),
    ),
    Mutant(
        name="committed-not-judged-again",
        title="A record that is committed at once is acknowledged by whatever ISR there is",
        breaks="An append blocks while the ISR shrinks; the leader alone acknowledges.",
        finders=("tests/broker/replication/test_committed_records.py",),
        edits=(
            Edit(
                "broker/produce/produce.py",
                "on_verdict(replica.judge_committed(last_offset))",
                "on_verdict(Verdict.ENOUGH)",
            ),
        ),
    ),
    Mutant(
        name="refused-deletion-forgotten",
        title="A deletion of a log that the disk refused is not repeated",
        breaks="A topic created again gets the records of the former one.",
        finders=(NAMESAKES,),
        edits=(
            Edit(
                REPLICAS,
                "        if key in self._undeleted:\n            self.directory.delete(*key)",
                "        if replica is not None:\n            self.directory.delete(*key)",
            ),
            Edit(
                DIRECTORY,
                "        self._renamed.rename_to_deleted(key)\n        self._detach(key)\n",
                "        self._detach(key)\n        self._renamed.rename_to_deleted(key)\n",
            ),
            Edit(
                DIRECTORY,
                "        if self._has_segments(path):\n",
                "        if False and self._has_segments(path):\n",
            ),
        ),
    ),
    Mutant(
        name="unopened-is-damaged",
        title="A log that the disk refuses to open is reported as damaged",
        breaks="An eligible replica is elected, though nothing is lost but what it lacks (acks=1).",
        finders=("tests/broker/replication/test_unopened_logs.py",),
        edits=(
            Edit(
                DIRECTORY,
                "            if is_refused_by_disk and key in self._unopened:\n"
                "                self._unopened.refuse(key, str(refusal))\n"
                "            else:\n"
                "                self.damaged[key] = str(refusal)\n",
                "            self.damaged[key] = str(refusal)\n",
            ),
        ),
    ),
)
