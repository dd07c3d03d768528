# SPDX-License-Identifier: Apache-2.0
"""The verb: installs an engine's released packages below build/engines, builds what of Terrace it loads, runs its tests."""

import argparse
import os
import time

from devlib.build import build
from devlib.commands import ROOT, build_dir, run
from devlib.engines.packages import Installer
from devlib.engines.registry import ENGINES
from devlib.output import Failure, Skipped, duration, note, say, table


def add_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", nargs="*", metavar="NAME", help="only these engines; default: all")
    verb.add_argument("--list", action="store_true", help="say which there are, and what of each is installed")
    verb.add_argument("--bench", action="store_true", help="measure in the place of the tests")
    verb.add_argument("--json", default="", metavar="FILE", help="write the bench's results here")
    verb.add_argument("--repeat", type=int, default=5, metavar="N", help="runs of each case of a bench (default 5)")
    verb.add_argument("--build-dir", default="", metavar="DIR", help="use this build as it is; default: build the release preset")


def test_all() -> None:
    verb = argparse.ArgumentParser()
    add_arguments(verb)
    engines(verb.parse_args([]))


def engines(arguments: argparse.Namespace) -> None:
    unknown = [name for name in arguments.names if name not in ENGINES]
    if unknown:
        raise Failure(f"no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}", 2)
    chosen = [ENGINES[name] for name in arguments.names or ENGINES]
    if arguments.list:
        table(["engine", "what is run", "packages", "here"],
              [(engine.name, engine.about, ", ".join(engine.packages), engine.lacks() or _state(engine)) for engine in chosen])
        return
    rows, failed = [], []
    for engine in chosen:
        begin = time.monotonic()
        try:
            _one(engine, arguments)
            rows.append((engine.name, "passed", duration(time.monotonic() - begin), ""))
        except Skipped as skip:
            rows.append((engine.name, "skipped", duration(time.monotonic() - begin), skip.reason))
        except Failure as failure:
            failed.append(engine.name)
            rows.append((engine.name, "failed", duration(time.monotonic() - begin), str(failure).splitlines()[0]))
    table(["engine", "result", "wall time", ""], rows)
    if failed:
        raise Failure(f"engines: {', '.join(failed)}")
    if all(row[1] == "skipped" for row in rows):
        raise Skipped("; ".join(f"{row[0]}: {row[3]}" for row in rows))


def _folder(engine):
    return build_dir("engines") / engine.name


def _state(engine) -> str:
    return "installed" if Installer(_folder(engine), engine.packages).done() else "not installed"


def _one(engine, arguments) -> None:
    missing = engine.lacks()
    if missing:
        raise Skipped(f"not on this machine: {missing}")
    folder = _folder(engine)
    installer = Installer(folder, engine.packages)
    if not installer.done():
        say(f"engines: {engine.name}: installing {', '.join(engine.packages)}")
        begin = time.monotonic()
        engine.install(installer)
        installer.finish()
        note(f"installed in {duration(time.monotonic() - begin)}: {folder}")
    if not arguments.build_dir:
        build("release", engine.targets, engine.definitions(folder))
    engine.prepare(folder)
    environment = {**os.environ, "TERRACE_ENGINE_DIR": str(folder),
                   "TERRACE_BUILD_DIR": arguments.build_dir or str(build_dir("release"))}
    if arguments.bench:
        say(f"engines: {engine.name}: bench")
        json = ["--json", os.path.abspath(arguments.json)] if arguments.json else []
        run(["/usr/bin/python3", "-B", ROOT / engine.bench, "--repeat", arguments.repeat, *json], env=environment,
            what=f"the bench of {engine.name}")
        return
    say(f"engines: {engine.name}: tests")
    for test in engine.tests:
        run(["/usr/bin/python3", "-B", ROOT / test], env=environment, what=test)
