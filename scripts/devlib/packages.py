# SPDX-License-Identifier: Apache-2.0
"""`setup`: installs the Debian packages of scripts/packages.txt that are missing."""

import os
import shutil
import subprocess

from devlib.commands import ROOT
from devlib.output import Failure, note, say

PACKAGE_LIST = ROOT / "scripts" / "packages.txt"

# Runs as root. A policy-rc.d that forbids it keeps maintainer scripts from starting services (redis-server)
# while we install; whatever stood there before is put back, also after Ctrl-C. A service that arrived with
# this install is disabled, so that it does not start at the next boot either.
INSTALL = r"""
set -eu
policy=/usr/sbin/policy-rc.d
kept=$policy.terrace-kept
restore() {
  rm -f "$policy"
  if [ -e "$kept" ]; then mv "$kept" "$policy"; fi
}
if [ -e "$policy" ] && [ ! -e "$kept" ]; then mv "$policy" "$kept"; fi
trap restore EXIT
trap 'exit 130' INT TERM HUP
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"
export DEBIAN_FRONTEND=noninteractive
apt-get -q -o DPkg::Lock::Timeout=300 update
apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install --no-install-recommends "$@"
for package in "$@"; do
  case "$package" in
    redis-server|prometheus|prometheus-alertmanager|slurmctld|slurmd|munge)
      if command -v systemctl >/dev/null 2>&1; then systemctl disable "$package.service" >/dev/null 2>&1 || true; fi ;;
  esac
done
"""


DEMO_SECTIONS = ("building", "libraries", "the demo")


def listed(sections: tuple = ()) -> list:
    """The package names, in the order of the list; with `sections` those below headings that begin so."""
    names, heading = [], ""
    for line in PACKAGE_LIST.read_text(encoding="utf-8").splitlines():
        name, _, remark = line.partition("#")
        name = name.strip()
        if name and (not sections or heading.startswith(sections)):
            names.append(name)
        elif not name:
            heading = remark.strip()
    return names


def missing(sections: tuple = ()) -> list:
    if shutil.which("dpkg-query") is None:
        raise Failure("this is no Debian: install what scripts/packages.txt lists by hand")
    query = subprocess.run(["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status}\n", *listed(sections)],
                           capture_output=True, text=True, check=False)
    installed = set()
    for line in query.stdout.splitlines():
        name, _, status = line.partition(" ")
        if status == "installed":
            installed.add(name.partition(":")[0])
    return [name for name in listed(sections) if name not in installed]


def setup(sections: tuple = ()) -> None:
    absent = missing(sections)
    wanted = len(listed(sections))
    if not absent:
        say(f"packages: all {wanted} are installed")
        return
    say(f"packages: installing {len(absent)} of {wanted}: {' '.join(absent)}")
    command = ["sh", "-c", INSTALL, "setup", *absent]
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise Failure("installing packages needs root, and there is no sudo; as root, run: "
                          f"apt-get install --no-install-recommends {' '.join(absent)}")
        note("asking sudo for root")
        command = ["sudo", *command]
    # apt reports its own progress. Standard input stays ours only where sudo may have to ask for a password.
    stdin = None if command[0] == "sudo" else subprocess.DEVNULL
    if subprocess.run(command, stdin=stdin, check=False).returncode != 0:
        raise Failure("installing packages failed; apt-get's message is above")
    still = missing(sections)
    if still:
        raise Failure(f"apt-get reported success, but these are not installed: {' '.join(still)}")
