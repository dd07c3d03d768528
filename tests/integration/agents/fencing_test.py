"""Whether a host can be fenced in time.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/agents/fencing_test.py [TestClass[.test]]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from agents_test import Case  # noqa: E402
from fabric import harness  # noqa: E402


class Lengths(Case):
    def test_a_host_lease_below_ten_seconds_is_refused_with_what_and_how(self):
        manager = self.fabric.manager()
        del manager.env["TERRACE_SHORT_HOST_LEASE"]
        for source, arguments in (("flag", ["--host-lease", "9s"]), ("file", ["--config", self.config("9s")])):
            with self.subTest(source):
                command = [word for word in manager.daemon_command() if word not in ("--host-lease", "4s")]
                refused = manager.run(*command, *arguments, "--check-config", check=2)
                for part in ("host_lease of 9 s", "10 s to 10 min", "--host-lease", "[listen]"):
                    self.assertIn(part, str(refused))
        manager.run(*command, "--host-lease", "10s", "--check-config")

    def config(self, length):
        file = self.fabric.directory / "m.toml"
        file.write_text(f'[listen]\nhost_lease = "{length}"\n')
        return file


if __name__ == "__main__":
    harness.main()
