# SPDX-License-Identifier: Apache-2.0
"""Objects of NIXL as blocks of a KV space, by the released library in several processes.

    TERRACE_ENGINE_DIR=build/engines/nixl TERRACE_BUILD_DIR=build/release python3 tests/engines/nixl/objects_test.py
"""

import hashlib
import sys

from support import MIB, PATIENCE_S, SIZES, Agent, Failed, TestCase, content
import terrace_harness as harness

LARGEST = 16 * MIB


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Objects(TestCase):
    def setUp(self):
        super().setUp()
        self.shared_lease("cache", "160M")
        self.t.cli("kv", "format", "cache", "--block", "64K", "--max-block", "16M")

    def objects_agent(self, name, keys, size=LARGEST, memory=64 * MIB, **parameters):
        agent = self.agent(name, space="cache", **parameters)
        agent.private("memory", memory)
        agent.objects(keys, size)
        return agent

    def test_what_one_process_writes_another_reads(self):
        keys = [f"object/{size}" for size in SIZES]
        writer, reader = (self.objects_agent(name, keys) for name in ("writer", "reader"))
        for number, size in enumerate(SIZES):
            writer.fill("memory", number, size, keys[number])
            self.assertEqual(writer.object("WRITE", "memory", [(number, 0, size, number)], "written"), "DONE")
        self.assertEqual(writer.notifications(len(SIZES)), [["writer", "written"]] * len(SIZES))
        for number, size in enumerate(SIZES):
            self.assertEqual(reader.object("READ", "memory", [(7, 0, size, number)]), "DONE")
            self.assertEqual(reader.digest("memory", 7, size), digest(content(keys[number], size)), size)
        self.assertEqual(reader.query([*keys, "another"]), [{"size": str(size)} for size in SIZES] + [None])

    def test_many_objects_in_one_transfer(self):
        keys, size = [f"many/{number}" for number in range(300)], 10_007
        writer, reader = (self.objects_agent(name, keys) for name in ("writer", "reader"))
        for number, key in enumerate(keys):
            writer.fill("memory", number * size, size, key)
        pieces = [(number * size, 0, size, number) for number in range(len(keys))]
        self.assertEqual(writer.object("WRITE", "memory", pieces), "DONE")
        self.assertEqual(reader.object("READ", "memory", pieces), "DONE")
        for number, key in enumerate(keys):
            self.assertEqual(reader.digest("memory", number * size, size), digest(content(key, size)))

    def test_an_object_of_several_pieces(self):
        agent = self.objects_agent("a", ["gathered"])
        for number in range(5):
            agent.fill("memory", number * MIB, 1000 + number, number)
        whole = b"".join(content(number, 1000 + number) for number in range(5))
        begins = [sum(1000 + before for before in range(number)) for number in range(5)]
        pieces = [(number * MIB, begins[number], 1000 + number, 0) for number in (3, 0, 4, 2, 1)]
        self.assertEqual(agent.object("WRITE", "memory", pieces), "DONE")
        self.assertEqual(agent.object("READ", "memory", [(6 * MIB, 0, len(whole), 0)]), "DONE")
        self.assertEqual(agent.digest("memory", 6 * MIB, len(whole)), digest(whole))
        self.assertEqual(agent.object("READ", "memory", [(8 * MIB, 4000, 10, 0), (9 * MIB + 1, 1, 2500, 0)]), "DONE")
        self.assertEqual(agent.digest("memory", 8 * MIB, 10), digest(whole[4000:4010]))
        self.assertEqual(agent.digest("memory", 9 * MIB + 1, 2500), digest(whole[1:2501]))

    def test_what_makes_up_no_object_is_refused(self):
        agent = self.objects_agent("a", ["gap", "overlap", "late", "long"], size=32 * MIB)
        for number, pieces, why in ((0, [(0, 0, 10), (0, 11, 10)], "leave one"), (1, [(0, 0, 10), (0, 9, 10)], "overlap"),
                                    (2, [(0, 5, 10)], "leave one"), (3, [(0, 0, 17 * MIB)], "takes up to")):
            with self.assertRaisesRegex(Failed, f"nixlInvalidParamError(.|\n)*{why}"):
                agent.object("WRITE", "memory", [(*piece, number) for piece in pieces])
        self.assertEqual(agent.query(["gap", "overlap", "late", "long"]), [None] * 4)

    def test_what_is_not_there_is_an_error(self):
        agent = self.objects_agent("a", ["absent", "short"])
        with self.assertRaisesRegex(Failed, "nixlNotFoundError(.|\n)*absent"):
            agent.object("READ", "memory", [(0, 0, 100, 0)])
        self.assertEqual(agent.object("WRITE", "memory", [(0, 0, 100, 1)]), "DONE")
        with self.assertRaisesRegex(Failed, "nixlMismatchError(.|\n)*short has 100 bytes"):
            agent.object("READ", "memory", [(0, 0, 101, 1)])

    def test_a_key_that_is_there_is_replaced_or_kept(self):
        other = self.objects_agent("other", ["key"])
        other.fill("memory", 0, 5000, "first")
        self.assertEqual(other.object("WRITE", "memory", [(0, 0, 5000, 0)]), "DONE")
        for existing, expected in (("keep", content("first", 5000)), ("replace", content("second", 7000))):
            agent = self.objects_agent(existing, ["key"], existing=existing)
            agent.fill("memory", 0, 7000, "second")
            self.assertEqual(agent.object("WRITE", "memory", [(0, 0, 7000, 0)]), "DONE")
            self.assertEqual(other.query(["key"]), [{"size": str(len(expected))}])
            self.assertEqual(other.object("READ", "memory", [(MIB, 0, len(expected), 0)]), "DONE")
            self.assertEqual(other.digest("memory", MIB, len(expected)), digest(expected))

    def test_terraces_own_programs_see_the_objects(self):
        agent = self.objects_agent("a", ["key"], namespace="model/a")
        agent.fill("memory", 0, 3000, "seen")
        self.assertEqual(agent.object("WRITE", "memory", [(0, 0, 3000, 0)]), "DONE")
        path = self.t.directory / "block"
        self.t.cli("kv", "get", "cache", "--key", "key", "--namespace", "model/a", "--output", path, json=False)
        self.assertEqual(path.read_bytes(), content("seen", 3000))

    def test_objects_outlive_a_writer_that_is_killed(self):
        writer, reader = (self.objects_agent(name, ["kept", "being written"]) for name in ("writer", "reader"))
        writer.fill("memory", 0, LARGEST, "kept")
        self.assertEqual(writer.object("WRITE", "memory", [(0, 0, LARGEST, 0)]), "DONE")
        writer.begin("put_for_ever", "memory", LARGEST, 1)
        harness.wait_until(lambda: reader.query(["being written"]) != [None], PATIENCE_S, "the first one is there")
        writer.kill()
        self.assertEqual(reader.object("READ", "memory", [(0, 0, LARGEST, 0)]), "DONE")
        self.assertEqual(reader.digest("memory", 0, LARGEST), digest(content("kept", LARGEST)))
        if reader.query(["being written"]) != [None]:  # whole, or not there
            self.assertEqual(reader.object("READ", "memory", [(0, 0, LARGEST, 1)]), "DONE")
            self.assertEqual(reader.digest("memory", 0, LARGEST), digest(content("kept", LARGEST)))
        self.assertEqual(reader.object("WRITE", "memory", [(0, 0, LARGEST, 1)]), "DONE")

    def test_a_full_space_makes_room(self):
        keys = [f"full/{number}" for number in range(40)]
        agent = self.objects_agent("a", keys, memory=LARGEST)
        for number, key in enumerate(keys):
            agent.fill("memory", 0, 100, key)
            self.assertEqual(agent.object("WRITE", "memory", [(0, 0, 8 * MIB, number)]), "DONE")
        there = [number for number, found in enumerate(agent.query(keys)) if found]
        self.assertLess(len(there), len(keys))
        self.assertIn(len(keys) - 1, there)
        self.assertEqual(agent.object("READ", "memory", [(0, 0, 100, there[0])]), "DONE")
        self.assertEqual(agent.digest("memory", 0, 100), digest(content(keys[there[0]], 100)))

    def test_after_a_lease_has_ended_every_call_is_an_error(self):
        agent = self.objects_agent("a", ["key"])
        self.assertEqual(agent.object("WRITE", "memory", [(0, 0, MIB, 0)]), "DONE")
        self.t.cli("lease", "revoke", "cache", "--grace", "0s", "--reason", "drill")
        for operation in ("READ", "WRITE", "READ"):
            with self.assertRaisesRegex(Failed, "nixlBackendError(.|\n)*lease_(expired|revoked)"):
                agent.object(operation, "memory", [(0, 0, MIB, 0)])
        with self.assertRaisesRegex(Failed, "nixlBackendError"):
            agent.query(["key"])

    def test_other_agents_objects_by_their_metadata(self):
        owner, user = self.objects_agent("owner", ["shared"]), self.agent("user", space="cache")
        elsewhere = self.agent("elsewhere", space="cache", namespace="other")
        owner.fill("memory", 0, 4000, "shared")
        self.assertEqual(owner.object("WRITE", "memory", [(0, 0, 4000, 0)]), "DONE")
        for agent in (user, elsewhere):
            agent.private("memory", MIB)
            self.assertEqual(agent.load(owner.metadata()), "owner")
        self.assertEqual(user.object("READ", "memory", [(0, 0, 4000, 0)], "read", agent="owner"), "DONE")
        self.assertEqual(user.digest("memory", 0, 4000), digest(content("shared", 4000)))
        self.assertEqual(owner.notifications(1), [["user", "read"]])
        with self.assertRaisesRegex(Failed, "nixlNotAllowedError(.|\n)*another KV space or namespace"):
            elsewhere.object("READ", "memory", [(0, 0, 4000, 0)], agent="owner")


class Parameters(TestCase):
    def refused(self, why, environment=None, **parameters):
        agent = Agent(self.t, "a", **(environment or {}))
        self.addCleanup(agent.close)
        with self.assertRaisesRegex(Failed, f"nixlBackendError(.|\n)*{why}"):
            agent.create(**parameters)
        return agent

    def test_wrong_ones_say_what_would_be_right(self):
        self.shared_lease("unformatted", "16M")
        self.refused("no parameter spaces; there are socket, space", spaces="cache")
        self.refused("existing=append: replace or keep", existing="append")
        self.refused("threads=many: 0 to 64", threads="many")
        self.refused("stores=all: published or explicit", stores="all")
        self.refused("listen=here: a folder", listen="here")
        self.refused("lease nosuch", space="nosuch")
        self.refused("lease nosuch", leases="nosuch")
        self.refused("terrace kv format unformatted", space="unformatted")
        self.refused("nosuch.sock", socket=str(self.t.directory / "nosuch.sock"))
        self.refused("ttl_s=soon", environment={"TERRACE_NIXL_TTL_S": "soon"})

    def test_a_refusal_leaves_the_agent_as_it_was(self):
        agent = self.refused("existing=append", existing="append")
        self.assertEqual(agent.create(), ["DRAM_SEG"])
        agent.private("memory", MIB)
        with self.assertRaisesRegex(Failed, "objects need a KV space"):
            agent.objects(["key"], 1)

    def test_the_environment_has_what_create_backend_is_not_told(self):
        self.shared_lease("cache", "16M")
        self.t.cli("kv", "format", "cache", "--block", "64K")
        agent = self.agent("a", environment={"TERRACE_NIXL_SPACE": "cache"})
        agent.private("memory", MIB)
        agent.objects(["key"], 1)
        self.assertEqual(agent.object("WRITE", "memory", [(0, 0, 1, 0)]), "DONE")


if __name__ == "__main__":
    sys.exit(harness.main())
