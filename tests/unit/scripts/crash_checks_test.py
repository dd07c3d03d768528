# SPDX-License-Identifier: Apache-2.0
"""The checks of the crash runs notice each kind of broken promise."""

import contextlib
import io
import multiprocessing
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/crash"), str(ROOT / "tests/support")]

import crash_run  # noqa: E402
from checks import (Broken, check_accounting, check_acknowledged, check_audit, check_disjoint,  # noqa: E402
                    check_settings)
from journal import Granted, Journal, read_load  # noqa: E402

MIB = 1 << 20


def lease(lease_id, offset, length=2 * MIB, phase="active", epoch=None, device="emu:a"):
    return {"id": lease_id, "epoch": epoch or lease_id, "bytes": length, "phase": phase,
            "extents": [{"device": device, "offset_bytes": offset, "length_bytes": length}]}


def by_id(*leases):
    return {row["id"]: row for row in leases}


def told(*rows):
    """A Journal in which these leases were acknowledged as they are."""
    journal = Journal()
    for row in rows:
        extents = tuple((e["device"], e["offset_bytes"], e["length_bytes"]) for e in row["extents"])
        journal.grant_asked()
        journal.grant_acknowledged(row["id"], Granted(row["epoch"], row["bytes"], extents))
    return journal


class Answers:
    """A harness whose CLI gives these documents, by noun."""

    def __init__(self, **documents):
        self.documents = documents

    def cli(self, noun, *_):
        return self

    @property
    def json(self):
        return self.documents


def entry(sequence, verb, subject):
    return {"sequence": sequence, "verb": verb, "subject": subject}


class ChecksTest(unittest.TestCase):
    def test_overlap_is_found_across_phases(self):
        check_disjoint(by_id(lease(1, 0), lease(2, 2 * MIB), lease(3, 0, device="emu:b")))
        with self.assertRaises(Broken):
            check_disjoint(by_id(lease(1, 0, 4 * MIB), lease(2, 2 * MIB, phase="scrubbing")))

    def test_what_was_told_is_there(self):
        check_acknowledged(told(lease(1, 0)), by_id(lease(1, 0)))

    def test_a_lease_that_vanished_is_found(self):
        with self.assertRaisesRegex(Broken, "is not there"):
            check_acknowledged(told(lease(1, 0)), {})

    def test_a_lease_that_changed_is_found(self):
        for changed in (lease(1, 2 * MIB), lease(1, 0, 4 * MIB), lease(1, 0, epoch=9)):
            with self.subTest(changed=changed), self.assertRaisesRegex(Broken, "was acknowledged as"):
                check_acknowledged(told(lease(1, 0)), by_id(changed))

    def test_an_open_change_makes_both_outcomes_right_and_nothing_else(self):
        journal = told(lease(1, 0))
        journal.change_asked("resize", 1)
        check_acknowledged(journal, by_id(lease(1, 0)))
        check_acknowledged(journal, by_id(lease(1, 0, 4 * MIB)))
        with self.assertRaisesRegex(Broken, "was acknowledged as"):
            check_acknowledged(journal, by_id(lease(1, 0, 4 * MIB, epoch=9)))
        journal.change_asked("transfer", 1)  # nobody has said yet what became of the resize
        for right in (lease(1, 0, epoch=9), lease(1, 0, 4 * MIB), lease(1, 0, 4 * MIB, epoch=9)):
            check_acknowledged(journal, by_id(right))
        journal.change_refused(1)  # the transfer: of the resize that says nothing
        check_acknowledged(journal, by_id(lease(1, 0, 4 * MIB)))
        with self.assertRaisesRegex(Broken, "was acknowledged as"):
            check_acknowledged(journal, by_id(lease(1, 0, epoch=9)))
        journal.change_refused(1)
        with self.assertRaisesRegex(Broken, "was acknowledged as"):
            check_acknowledged(journal, by_id(lease(1, 0, 4 * MIB)))
        journal.change_asked("transfer", 1)
        journal.change_acknowledged(1, 9, 2 * MIB)
        with self.assertRaisesRegex(Broken, "was acknowledged as"):
            check_acknowledged(journal, by_id(lease(1, 0)))  # the acknowledged hand-over came undone

    def test_a_movable_lease_may_be_elsewhere_later_only(self):
        journal = told(lease(1, 0, epoch=5))
        journal.granted[1].movable = True
        check_acknowledged(journal, by_id(lease(1, 8 * MIB, epoch=7)))
        for wrong in (lease(1, 8 * MIB, epoch=5), lease(1, 8 * MIB, epoch=4), lease(1, 8 * MIB, 4 * MIB, epoch=7)):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(Broken, "was acknowledged as"):
                check_acknowledged(journal, by_id(wrong))

    def test_a_setting_that_was_lost_or_came_back_is_found(self):
        journal = Journal()
        journal.setting_asked(("quota", "t"), 5)
        seen = {value: Answers(quotas=[{"tenant": "t", "bytes_max": value}] if value else [], reservations=[])
                for value in (None, 5, 6)}
        check_settings(journal, seen[None])
        check_settings(journal, seen[5])
        journal.setting_acknowledged(("quota", "t"), 5)
        for wrong in (None, 6):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(Broken, "the quota of t"):
                check_settings(journal, seen[wrong])

    def test_an_audit_log_with_a_gap_or_without_an_acknowledged_change_is_found(self):
        journal = told(lease(1, 0))
        journal.add("released", 1)
        whole = [entry(1, "pool create", "pool p"), entry(2, "grant", "lease 1"), entry(3, "release", "lease 1")]
        check_audit(journal, Answers(entries=whole))
        for wrong in (whole[:2], whole[::2], [whole[0], whole[2]], whole[1:],
                      [whole[0], entry(2, "grant", "lease 2"), whole[2]]):
            with self.subTest(wrong=wrong), self.assertRaises(Broken):
                check_audit(journal, Answers(entries=wrong))

    def test_a_release_that_came_undone_is_found(self):
        journal = told(lease(1, 0))
        journal.add("releasing", 1)
        check_acknowledged(journal, by_id(lease(1, 0)))  # asked for, not acknowledged: both outcomes are right
        journal.add("released", 1)
        with self.assertRaisesRegex(Broken, "the release of lease 1"):
            check_acknowledged(journal, by_id(lease(1, 0)))
        check_acknowledged(journal, by_id(lease(1, 0, phase="scrubbing")))

    def test_a_revocation_that_came_undone_is_found(self):
        journal = told(lease(1, 0))
        journal.add("revoking", 1)
        journal.add("revoked", 1)
        with self.assertRaisesRegex(Broken, "the revocation of lease 1"):
            check_acknowledged(journal, by_id(lease(1, 0)))

    def test_a_lease_nobody_was_told_of_is_allowed_once_for_each_open_grant(self):
        journal = told(lease(1, 0))
        with self.assertRaisesRegex(Broken, "grants were left open"):
            check_acknowledged(journal, by_id(lease(1, 0), lease(2, 2 * MIB)))
        journal.grant_asked()
        check_acknowledged(journal, by_id(lease(1, 0), lease(2, 2 * MIB)))

    def test_memory_lost_without_a_cause_is_found(self):
        journal = told(lease(1, 0))
        journal.add("lost", 1)
        with self.assertRaisesRegex(Broken, "nobody took it back"):
            check_acknowledged(journal, {})

    def test_one_epoch_twice_is_found(self):
        rows = lease(1, 0, epoch=5), lease(2, 2 * MIB, epoch=5)
        with self.assertRaisesRegex(Broken, "same LeaseEpoch"):
            check_acknowledged(told(*rows), by_id(*rows))

    def test_bytes_that_do_not_add_up_are_found(self):
        pool = {"capacity_bytes": 8 * MIB, "free_bytes": 6 * MIB, "leased_bytes": 2 * MIB, "scrubbing_bytes": 0,
                "quarantined_bytes": 0}
        check_accounting(pool, by_id(lease(1, 0)))
        for wrong in ({"free_bytes": 5 * MIB}, {"leased_bytes": 0, "quarantined_bytes": 2 * MIB}):
            with self.subTest(wrong=wrong), self.assertRaises(Broken):
                check_accounting({**pool, **wrong}, by_id(lease(1, 0)))
        with self.assertRaises(Broken):
            check_accounting(pool, {})

    def test_a_clients_lines_are_read_up_to_the_last_whole_one(self):
        text = ("granting\ngranted 7 3 2097152\nextents 7 emu:a:0:2097152\nreleasing 7\nreleased 7\n"
                "granting\nunknown grant\ngranting\nrefused grant capacity_exhausted full\ngranting\ngranted 8 4 20")
        with tempfile.TemporaryDirectory(prefix="terrace-journal-") as folder:
            path = pathlib.Path(folder, "out")
            path.write_text(text, encoding="utf-8")
            journal = read_load(path)
        self.assertEqual({7: Granted(3, 2 * MIB, (("emu:a", 0, 2 * MIB),))}, journal.granted)
        self.assertEqual(({7}, {7}), (journal.releasing, journal.released))
        self.assertEqual((3, 2), (journal.answers, journal.open_grants))  # one unknown, one cut off

    def test_changes_are_read_with_their_outcomes(self):
        text = ("granting\ngranted 7 3 2097152\nextents 7 emu:a:0:2097152\nresizing 7\nchanged 7 3 4194304\n"
                "extents 7 emu:a:0:4194304\nmoving 7\nrefused move capacity_exhausted 7 : full\ntransferring 7\n"
                "unknown transfer 7\n")
        with tempfile.TemporaryDirectory(prefix="terrace-journal-") as folder:
            path = pathlib.Path(folder, "out")
            path.write_text(text, encoding="utf-8")
            journal = read_load(path)
        self.assertEqual({7: Granted(3, 4 * MIB, (("emu:a", 0, 4 * MIB),), open=("transfer",))}, journal.granted)
        self.assertEqual((2, 3), (journal.acknowledged, journal.answers))


class RunsTest(unittest.TestCase):
    """Runs go on side by side; what each gave is told in the order that was asked for."""

    def run_all(self, runs, jobs, scenario):
        with unittest.mock.patch.object(crash_run, "scenario_of", lambda _workload: scenario), \
                contextlib.redirect_stdout(io.StringIO()):
            return crash_run.run_points(None, runs, 7, jobs)

    def test_results_keep_their_places_and_the_longest_begin(self):
        with tempfile.NamedTemporaryFile("a+") as told:
            def scenario(_programs, point, hit, seed, workload):
                told.write(f"{point}{hit} {seed} {workload}\n")
                told.flush()
                if point == "b":
                    raise Broken("a promise")

            results = self.run_all([("a", "churn", 1), ("b", "churn", 4), ("c", "drain", 1), ("d", "calm", 4)], 1, scenario)
            told.seek(0)
            self.assertEqual(told.read().splitlines(), ["d4 11 calm", "c1 8 drain", "a1 8 churn", "b4 11 churn"])
        self.assertEqual([problem for problem, _ in results], [None, "a promise", None, None])

    def test_two_at_a_time(self):
        meeting = multiprocessing.get_context("fork").Barrier(2)
        results = self.run_all([("a", "churn", 1), ("b", "churn", 1)], 2, lambda *_: meeting.wait(60))
        self.assertEqual([problem for problem, _ in results], [None, None])


if __name__ == "__main__":
    unittest.main()
