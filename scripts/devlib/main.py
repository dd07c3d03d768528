# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/dev."""

import argparse
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from devlib import ci, console, lint, mutate, packages, runs, site, static, upgrade  # noqa: E402
from devlib.build import build, clean, test  # noqa: E402
from devlib.commands import PRESETS  # noqa: E402
from devlib.kubernetes import kubernetes  # noqa: E402
from devlib.output import Failure, complain  # noqa: E402
from devlib.package import package  # noqa: E402
from devlib.timings import timings  # noqa: E402


def _demo(arguments: argparse.Namespace) -> None:
    if not arguments.no_setup:
        packages.setup(packages.DEMO_SECTIONS)
    from demo.main import TARGETS, demo  # the demo's modules are not needed by any other verb

    build("release", TARGETS)
    demo(keep=arguments.keep)


def _build(arguments: argparse.Namespace) -> None:
    (timings if arguments.timings else build)(arguments.preset, arguments.targets)


def _test(arguments: argparse.Namespace) -> None:
    if not arguments.no_setup:
        packages.setup()
    test(arguments.pattern)


def _qemu(arguments: argparse.Namespace) -> None:
    from qemu.main import qemu

    qemu(arguments)


def _add_qemu(verb: argparse.ArgumentParser) -> None:
    from qemu.main import add_arguments

    add_arguments(verb)


def _apps(arguments: argparse.Namespace) -> None:
    from devlib.apps.main import apps  # nor are those of the real programs

    apps(arguments)


def _add_apps(verb: argparse.ArgumentParser) -> None:
    from devlib.apps.main import add_arguments

    add_arguments(verb)


def _engines(arguments: argparse.Namespace) -> None:
    from devlib.engines.main import engines

    engines(arguments)


def _add_engines(verb: argparse.ArgumentParser) -> None:
    from devlib.engines.main import add_arguments

    add_arguments(verb)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="scripts/dev", description="Builds, tests, checks and shows Terrace.")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)

    def add(name: str, action, text: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=text, description=text)
        verb.set_defaults(action=action)
        return verb

    add("setup", lambda a: packages.setup(), "Install the missing Debian packages of scripts/packages.txt "
        "(root, or sudo when not root).")

    verb = add("build", _build, "Configure and build a preset into build/PRESET.")
    verb.add_argument("preset", nargs="?", default="dev", choices=PRESETS, help="default: dev (ASan, UBSan, "
                      "failpoints)")
    verb.add_argument("targets", nargs="*", help="only these targets; default: all")
    verb.add_argument("--timings", action="store_true", help="from nothing, in a folder of its own and without the compiler "
                      "cache; print the processor time, and what was slow")

    verb = add("test", _test, "Build the dev preset and run every test that needs no special "
               "hardware.")
    verb.add_argument("pattern", nargs="?", default="", help="only tests whose name matches this expression")
    verb.add_argument("--no-setup", action="store_true", help="do not look at the packages")

    add("check", lambda a: lint.check(), "Format, layers and the other checks of the sources.")
    add("format", lambda a: lint.format_tree(), "Rewrite the C++ files as .clang-format says.")
    add("layers", lambda a: lint.layers(), "Check every #include against scripts/layers.txt.")

    verb = add("static", lambda a: static.static(a.all), "Let clang say what it finds without running anything: what locks "
               "protect, in every source, and clang-tidy in some (docs/testing.md).")
    verb.add_argument("--all", action="store_true", help="clang-tidy in every source; what passed once is not looked at again")

    add("docs", lambda a: site.build_site(), "Make a site of the Markdown pages in build/site (mkdocs-material); a link that "
        "leads nowhere fails.")

    add("console", lambda a: console.console(), "Check the console's types, run the tests of what needs no browser, bundle it and "
        "print its size. Every build of terraced bundles it, too, where esbuild is.")

    verb = add("sim", lambda a: runs.sim(a.seeds, a.seed), "Run the seeded simulation of manager, store and faults.")
    verb.add_argument("--seeds", type=int, default=20000, metavar="N", help="how many seeds (default 20000)")
    verb.add_argument("--seed", type=int, metavar="S", help="replay this one")

    verb = add("crash", lambda a: runs.crash(a.points, "full", a.soak_seconds, a.seed), "Kill the daemon and its "
               "clients at every failpoint, then at random moments, and check what is left.")
    verb.add_argument("points", nargs="*", help="only these failpoints ('soak' for the random kills); default: all")
    verb.add_argument("--soak-seconds", type=float, default=60, metavar="S", help="random kills (default 60)")
    verb.add_argument("--seed", type=int, metavar="S", help="of the soak's schedule")

    verb = add("upgrade", lambda a: upgrade.upgrade(a.older), "Build the last released version (scripts/releases.txt) and run its "
               "manager, command line, library and agents with those of this tree.")
    verb.add_argument("--from", dest="older", default="", metavar="COMMIT", help="the older version; default: the last release")

    add("hostile", lambda a: runs.hostile(), "Attack a daemon as other tenants in every way, and bound what one that "
        "behaves notices.")

    verb = add("fuzz", lambda a: runs.fuzz(a.target, a.seconds), "Build the fuzz targets (clang), replay the corpus "
               "and search.")
    verb.add_argument("target", nargs="?", default="", help="one target; default: all")
    verb.add_argument("--seconds", type=int, default=60, metavar="N", help="per target (default 60; 0 replays only)")

    verb = add("tsan", lambda a: runs.tsan(a.pattern), "Build the tsan preset and run its tests.")
    verb.add_argument("pattern", nargs="?", default="", help="only tests whose name matches this expression")

    mutate.add_arguments(add("mutate", lambda a: mutate.mutate(a), "Change one piece of the code after the other, in a copy: "
                             "of the protocol of tensor spaces, or of the manager; and fail when no test notices (docs/testing.md)."))

    verb = add("bench", lambda a: runs.bench(a.name, a.json, a.smoke), "Run the benches of the release build.")
    verb.add_argument("name", nargs="?", default="", help="one bench; default: all")
    verb.add_argument("--json", default="", metavar="FILE", help="write the results here")
    verb.add_argument("--smoke", action="store_true", help="small and quick: shows that it runs, measures nothing")

    add("package", lambda a: package(), "Build the Debian packages into build/packages, have lintian look at them, and start "
        "what is in them.")

    verb = add("demo", _demo, "Install what is missing, build the programs in the "
               "release preset and show the main job.")
    verb.add_argument("--no-setup", action="store_true", help="do not look at the packages")
    verb.add_argument("--keep", action="store_true", help="keep the demo's folder (logs, model) and say where it is")

    _add_qemu(add("qemu", _qemu, "Boot guests with emulated CXL devices: run the tests that need such hardware, or "
                  "give a shell in one (docs/operations/qemu.md)."))

    verb = add("pins", lambda a: runs.pins(a.seconds), "Pin memory of programs in every way that the kernel has, "
               "while it migrates, and compare every byte.")
    verb.add_argument("--seconds", type=int, default=3600, metavar="N", help="in all (default 3600)")

    verb = add("soak", lambda a: runs.soak(a.kind, a.reads, a.json), "Put, read and erase blocks of KV spaces by processes that are "
               "killed and stopped, and on emulated hosts without coherent caches, and compare every word.")
    verb.add_argument("kind", nargs="*", help="coherent, noncoherent, emulated; default: all")
    verb.add_argument("--reads", type=float, default=1e8, metavar="N", help="of each (default 1e8)")
    verb.add_argument("--json", default="", metavar="FILE", help="write the counts here")

    _add_apps(add("apps", _apps, "Run unmodified real programs plain and under `terrace run`, compare their results, and "
                  "print times and memory (docs/operations/apps.md)."))

    _add_engines(add("engines", _engines, "Install released programs that serve models, and run the tests of what of Terrace they "
                     "load (docs/testing.md)."))
    verb = add("kubernetes", lambda a: kubernetes(a.pattern), "Check and test the driver for Kubernetes (deploy/kubernetes) with the "
               "terraced of the dev preset. Needs Go and its module proxy.")
    verb.add_argument("pattern", nargs="?", default="", help="only tests whose name matches this expression")

    add("ci", lambda a: ci.ci(), "All stages that a change must pass, with a table of their times.")
    add("clean", lambda a: clean(), "Remove the build folder.")
    return top


def main() -> int:
    # A terminated verb unwinds like an interrupted one, so that the programs it started end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell starts what is to run in the background without them, and tests send them to programs that inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    verbs = parser()
    arguments, rest = verbs.parse_known_args()
    if rest and hasattr(arguments, "targets") and not any(word.startswith("-") for word in rest):
        arguments.targets += rest  # argparse takes no further names behind an option
    elif rest:
        verbs.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        arguments.action(arguments)
    except Failure as failure:
        complain(str(failure))
        return failure.exit_code
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:  # somebody read only the first lines: scripts/dev ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
