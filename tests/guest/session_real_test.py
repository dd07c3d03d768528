# SPDX-License-Identifier: Apache-2.0
"""The client library's integration tests (tests/integration/session) again, with a dax device in the place of the
emulated one."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration/session"))

import real_pool  # noqa: E402
import session_test  # noqa: E402
import terrace_harness as harness  # noqa: E402


class DaxService(real_pool.Service):
    """A service whose devices are what the machine has, not what the test names."""

    def __init__(self, devices=None, **options):
        super().__init__(**options)

    def create_pool(self, name="p", devices=None):
        return self.compose(real_pool.Devdax.prepare(self), name)


session_test.Harness = DaxService


class SessionOnDax(session_test.SessionTest):
    """Every test of the class, but for what is about the capacity of an emulated device."""


del session_test.SessionTest.test_usage_and_arena  # asks for more than the 64 MiB that its emulated device has

if __name__ == "__main__":
    harness.main()
