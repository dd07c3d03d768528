#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Installs libterrace into a temporary prefix and builds one program with it twice: through find_package(terrace) and
through pkg-config, and one in C. Also checks that every installed header compiles alone and names no library of ours."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    for name in ("build-dir", "compiler", "c-compiler", "cmake", "pkg-config", "generator", "sanitize"):
        parser.add_argument(f"--{name}", required=name != "sanitize", default="")
    arguments = parser.parse_args()
    flags = [f"-fsanitize={arguments.sanitize}"] if arguments.sanitize else []

    with tempfile.TemporaryDirectory(prefix="terrace-install-") as folder:
        folder = pathlib.Path(folder)
        prefix = folder / "first"
        for component in ("library", "development"):
            run([arguments.cmake, "--install", arguments.build_dir, "--prefix", prefix, "--component", component])
        prefix = prefix.rename(folder / "moved")  # nothing installed may remember where it was put
        check_headers(prefix, arguments.compiler)
        libraries = next(prefix.rglob("libterrace.so")).parent
        environment = dict(os.environ, LD_LIBRARY_PATH=str(libraries))

        build = folder / "cmake"
        run([arguments.cmake, "-S", HERE / "consumer", "-B", build, "-G", arguments.generator,
             f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={arguments.compiler}",
             f"-DCMAKE_CXX_FLAGS={' '.join(flags)}"])
        run([arguments.cmake, "--build", build])
        by_cmake = run([build / "consumer"])  # finds the library by the build's own rpath

        pc_folder = next(prefix.rglob("terrace.pc")).parent
        pc_environment = dict(os.environ, PKG_CONFIG_PATH=str(pc_folder))
        found = run([arguments.pkg_config, "--cflags", "--libs", "terrace"], env=pc_environment).split()
        program = folder / "by_pkg_config"
        run([arguments.compiler, "-std=c++20", *flags, HERE / "consumer" / "main.cc", "-o", program, *found])
        by_pkg_config = run([program], env=environment)

        version = run([arguments.pkg_config, "--modversion", "terrace"], env=pc_environment).strip()
        for output in (by_cmake, by_pkg_config):
            if output != f"terrace {version}\n":
                sys.exit(f"the consumer printed {output!r}, the package is version {version}")
        check_symbols(libraries / "libterrace.so")
        check_c(prefix, libraries / "libterrace.so", folder, arguments.c_compiler, flags, found, environment)
    print(f"terrace {version}: installed, moved, found by CMake and pkg-config")


def check_headers(prefix, compiler):
    headers = sorted((prefix / "include").rglob("*.h"))
    if len(headers) < 10:
        sys.exit(f"only {len(headers)} headers were installed")
    include = ["-I", prefix / "include", "-I", prefix / "include" / "terrace"]
    for header in headers:
        foreign = re.findall(r'#include [<"]((?:kj|capnp|libpmem2|numa|liburing|sqlite3)[^>"]*)', header.read_text())
        if foreign:
            sys.exit(f"{header} shows {foreign[0]} to users of the library")
        run([compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *include, "-include", header, "-x", "c++", "/dev/null"])


def check_symbols(library):
    """Only Terrace's own names are visible, and one by which others look for it (terrace/visibility.h): kj's
    templates inside must not meet another version's."""
    names = run(["nm", "-DC", "--defined-only", library]).splitlines()
    ours = [line for line in names if "terrace::" in line or re.search(r" (terrace_|lmcache_shared_l1_visibility_v1$)", line)]
    strangers = [line for line in names if line not in ours and not re.search(r" A |__(asan|ubsan|tsan|odr)", line)]
    if not ours or strangers:
        sys.exit(f"{len(ours)} symbols of our own; strangers: {strangers[:5]}")


def check_c(prefix, library, folder, compiler, flags, found, environment):
    """The headers for C are C11, a program in C links and runs, and each function of the headers is there."""
    names = ("terrace_c.h", "kv_c.h")
    text = "".join(next(prefix.rglob(name)).read_text() for name in names)
    declared = set(re.findall(r"^[\w *]*?\**(terrace_\w+)\(", text, re.MULTILINE))
    exported = set(re.findall(r" T (terrace_\w+)$", run(["nm", "-D", "--defined-only", library]), re.MULTILINE))
    if len(declared) < 80 or declared != exported:
        sys.exit(f"{len(declared)} functions in {' and '.join(names)}; not exported: {sorted(declared - exported)}, not declared: "
                 f"{sorted(exported - declared)}")
    program = folder / "consumer_c"
    run([compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *flags, HERE / "consumer" / "main.c", "-o", program,
         *found])
    run([program], env=environment)


if __name__ == "__main__":
    main()
