# SPDX-License-Identifier: Apache-2.0
"""git, gcc and openssl: short-lived programs that start others, and one that only computes."""

import hashlib
import re

from devlib.apps.registry import App
from devlib.apps.side import AppFailure, AppSkipped, Side, digest, file_digest
from devlib.commands import ROOT

SOURCES = ("core/base/units.cc", "core/base/prng.cc", "daemon/model/placement.cc", "daemon/model/extent_map.cc",
           "libclient/arena/granule_allocator.cc", "tiering/policy/benefit_density.cc")


def _git(side: Side) -> dict:
    if not (ROOT / ".git").exists():
        raise AppSkipped("this tree is not a git repository")
    side.script(".gitconfig", "[safe]\n\tdirectory = *\n[gc]\n\tauto = 0\n[user]\n\tname = t\n\temail = t@example.org\n"
                "[advice]\n\tdetachedHead = false\n")
    dates = {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
             "GIT_CONFIG_NOSYSTEM": "1"}
    copy, results = side.folder / "copy", {}

    def git(*words, at=copy) -> bytes:
        return side.run("git", *words, cwd=at, env=dates)

    git("clone", "-q", "--no-local", ROOT, copy, at=side.folder)
    git("-c", "pack.threads=2", "repack", "-a", "-d", "-f", "-q", "--depth=20", "--window=10")
    git("gc", "-q", "--prune=now")
    results["fsck"] = digest(git("fsck", "--full", "--strict"))
    results["HEAD"] = git("rev-parse", "HEAD").decode()
    results["objects"] = digest(b"\n".join(sorted(git("rev-list", "--all", "--objects").splitlines())))
    results["archive"] = digest(git("archive", "HEAD"))
    if not side.quick:
        results["log"] = digest(git("log", "--stat", "-M", "-n", "300", "--format=%H %s"))
        results["blame"] = digest(git("blame", "README.md"))
    (copy / "large.bin").write_bytes(hashlib.shake_128(b"large").digest(24_000_000))
    git("add", "large.bin")
    git("commit", "-q", "-m", "a large file")
    results["commit"] = git("rev-parse", "HEAD").decode()
    results["status"] = git("status", "--porcelain").decode()
    git("clone", "-q", "--no-local", copy, side.folder / "second", at=side.folder)
    results["second clone"] = git("rev-parse", "HEAD", at=side.folder / "second").decode()
    results["large file"] = file_digest(side.folder / "second" / "large.bin")
    return results


def _gcc(side: Side) -> dict:
    results = {}
    for source in SOURCES[:2] if side.quick else SOURCES:
        out = side.folder / (source.replace("/", "_") + ".o")
        side.run("g++", "-std=c++20", "-O2", f"-I{ROOT}", "-c", source, "-o", out, cwd=ROOT)
        results[source] = file_digest(out)
    if not side.quick:
        results.update(_build(side))
    return results


def _build(side: Side) -> dict:
    """The preload libraries, from nothing: cmake, ninja, some 50 compilations, the linker."""
    build = side.folder / "build"
    plain = {"CCACHE_DISABLE": "1"}
    side.run("cmake", "-G", "Ninja", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", env=plain)
    side.run("ninja", "-C", build, "-j2", "terrace_malloc", "terrace_heap_preload", env=plain, timeout=900)
    made = sorted([*build.glob("allocator/CMakeFiles/**/*.o"), *build.glob("allocator/*.so")])
    if len(made) < 40:
        raise AppFailure(f"the build made {len(made)} files only")
    return {str(path.relative_to(build)): file_digest(path) for path in made}


def _openssl(side: Side) -> dict:
    data = side.folder / "data"
    data.write_bytes(hashlib.shake_128(b"data").digest(20_000_000 if side.quick else 60_000_000))
    results = {}
    with side.clock():
        for cipher in ("aes-256-ctr", "aes-256-cbc", "chacha20"):
            side.run("openssl", "enc", f"-{cipher}", "-K", "11" * 32, "-iv", "22" * 16, "-bufsize", "8000000", "-in",
                     data, "-out", side.folder / "cipher")
            results[cipher] = file_digest(side.folder / "cipher")
        for name in ("sha256", "sha3-512", "blake2b512"):
            results[name] = side.run("openssl", "dgst", f"-{name}", "-r", data).decode()
    for name in ("sha256", "aes-128-cbc"):
        text = side.run("openssl", "speed", "-seconds", "1", "-bytes", "16384", "-multi", "2", "-evp", name).decode()
        found = re.search(r"^evp\s+([\d.]+)k|^\S*" + name + r"\S*\s+([\d.]+)k", text, re.MULTILINE | re.IGNORECASE)
        if found:
            side.rate(f"openssl_{name}_kb_per_s", float(found[1] or found[2]))
    text = side.run("openssl", "speed", "-seconds", "1", "rsa2048").decode()
    found = re.search(r"rsa 2048 bits\s+\S+\s+\S+\s+([\d.]+)", text)
    if found:
        side.rate("openssl_rsa2048_signs_per_s", float(found[1]))
    return results


APPS = [
    App("git", "clone, repack, gc, fsck and more of this repository", _git, programs={"git": "git"}, ddr="4M"),
    App("gcc", "g++ on files of this project, and a build of its preload libraries; objects byte by byte", _gcc,
        programs={"g++": "g++", "cmake": "cmake", "ninja": "ninja-build"}, ddr="4M"),
    App("openssl", "ciphers and digests of a file; openssl speed", _openssl, programs={"openssl": "openssl"},
        ddr="4M"),
]
