# SPDX-License-Identifier: Apache-2.0
"""`kubernetes`: the driver in deploy/kubernetes, a Go program: how it is written, and its tests with a real terraced. Its modules come
from the Go module proxy, pinned by go.sum; without Go or the proxy the stage is skipped, and says why."""

import os
import re
import shutil
import subprocess

from devlib.commands import ROOT, build_dir, run
from devlib.output import Failure, Skipped, say

SOURCES = ROOT / "deploy/kubernetes"
DOWNLOAD_SECONDS = 300
BUILD_SECONDS = 1200  # of client-go and what it needs, once a machine: Go keeps what it has compiled
TEST_SECONDS = 900


def _environment() -> dict:
    # GOTOOLCHAIN: never another compiler from the network. -mod=readonly: what go.mod and go.sum say, or nothing.
    return {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "TERRACE_BUILD_DIR": str(build_dir("dev"))}


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise Skipped("Go is not installed (deploy/kubernetes needs it)")
    wanted = re.search(r"^go (\d+)\.(\d+)", (SOURCES / "go.mod").read_text(encoding="utf-8"), re.M)
    found = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=_environment(), cwd="/").stdout
    number = re.match(r"go(\d+)\.(\d+)", found.strip())
    if number and [int(part) for part in number.groups()] < [int(part) for part in wanted.groups()]:
        raise Skipped(f"{found.strip()} is older than deploy/kubernetes needs (go {wanted[1]}.{wanted[2]})")
    return go


def _download(go: str) -> None:
    try:
        done = subprocess.run([go, "mod", "download"], cwd=SOURCES, env=_environment(), capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Skipped(f"the Go module proxy did not give all modules within {DOWNLOAD_SECONDS} s") from None
    if done.returncode != 0:
        said = done.stderr.strip()
        if "checksum mismatch" in said or "missing go.sum entry" in said or "go: updates to go.mod needed" in said:
            raise Failure(f"kubernetes: modules are not those of go.sum:\n{said}")
        raise Skipped(f"the Go module proxy cannot be reached: {said.splitlines()[-1] if said else 'go mod download failed'}")


def kubernetes(pattern: str = "") -> None:
    go = _go()
    for program in ("daemon/terraced", "cli/terrace"):
        if not (build_dir("dev") / program).is_file():
            raise Failure(f"{program} is not built; run `scripts/dev build` first")
    _download(go)
    gofmt = subprocess.run(["gofmt", "-l", "."], cwd=SOURCES, capture_output=True, text=True, check=False)
    if gofmt.returncode != 0 or gofmt.stdout:
        raise Failure(f"kubernetes: run gofmt -w on {gofmt.stdout.split()} {gofmt.stderr}")
    say("kubernetes: gofmt has nothing to say")
    options = {"cwd": SOURCES, "env": _environment()}
    try:
        # Those two would have it read all that is imported, as well; `go test` would do so once more.
        run([go, "vet", "-printf=false", "-lostcancel=false", "./..."], what="kubernetes: go vet", timeout=BUILD_SECONDS, **options)
        say("kubernetes: go vet has nothing to say")
        run([go, "test", "-count=1", "-vet=off", f"-timeout={TEST_SECONDS}s", f"-run={pattern}", "./..."], what="kubernetes: the tests",
            timeout=BUILD_SECONDS + TEST_SECONDS, **options)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"kubernetes: {late}") from None
