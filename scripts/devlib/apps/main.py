# SPDX-License-Identifier: Apache-2.0
"""The verb: chooses apps, runs each plain and under `terrace run`, compares, and prints the table."""

import argparse
import json
import pathlib
import shlex
import shutil
import signal
import statistics
import sys
import time

from devlib.commands import ROOT, build_dir
from devlib.output import Failure, Heartbeat, Skipped, complain, duration, note, say, table

sys.path.insert(0, str(ROOT / "tests" / "support"))

from terrace_harness import Harness, HarnessError, can_mount  # noqa: E402

from devlib.apps.registry import all_apps  # noqa: E402
from devlib.apps.side import AppSkipped, Side  # noqa: E402

TARGETS = ["terrace", "terraced", "terrace_malloc", "terrace_heap_preload"]
POOL_DEVICES = {"a": "1G", "b": "1G"}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", nargs="*", metavar="NAME", help="only these programs; default: all")
    verb.add_argument("--list", action="store_true", help="say which there are and which this machine lacks")
    verb.add_argument("--json", default="", metavar="FILE", help="write the results here")
    verb.add_argument("--run-args", default="", metavar='"..."', help="further options of `terrace run`; a --ddr or "
                      "--cxl there replaces that of the program (docs/operations/apps.md)")
    verb.add_argument("--repeat", type=int, default=1, metavar="N", help="rounds, plain and tiered in turn; times and "
                      "memory are medians (default 1)")
    verb.add_argument("--quick", action="store_true", help="less work for each program: shows sameness, measures "
                      "little")
    verb.add_argument("--build-dir", default="", metavar="DIR", help="use this build as it is; default: build the "
                      "release preset")
    verb.add_argument("--keep", action="store_true", help="keep the folders of a program that differs")


def apps(arguments: argparse.Namespace) -> None:
    # Started in the background by a shell, this process ignores SIGINT and hands that on: CPython's own tests
    # of it would fail, plain and under `terrace run`.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    known = all_apps()
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        raise Failure(f"no program {', '.join(unknown)}; there are {', '.join(known)}", 2)
    chosen = [known[name] for name in arguments.names or known]
    if arguments.list:
        table(["program", "what is run", "here"], [(app.name, app.about, _lacks(app) or "yes") for app in chosen])
        return
    if not arguments.build_dir:
        from devlib.build import build
        build("release", TARGETS)
    reports = []
    begin = time.monotonic()
    for app in chosen:
        say(f"apps: {app.name}: {app.about}")
        reports.append(_one(app, arguments))
        _tell(reports[-1])
    say(f"apps: {duration(time.monotonic() - begin)}{', ' if arguments.run_args else ''}{arguments.run_args}")
    table(["program", "same result", "wall time", "peak RSS", "leased", "moved up/down", ""],
          [_row(report) for report in reports])
    if arguments.json:
        document = {"run_args": arguments.run_args, "repeat": arguments.repeat, "quick": arguments.quick,
                    "programs": reports}
        pathlib.Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        note(f"results in {arguments.json}")
    wrong = [report["name"] for report in reports if report["result"] in ("differs", "failed")]
    if wrong:
        raise Failure(f"apps: not as in a plain run: {', '.join(wrong)}")
    if all(report["result"] == "skipped" for report in reports):
        raise Skipped("; ".join(f"{report['name']}: {report['reason']}" for report in reports))


def _lacks(app) -> str:
    missing = app.missing()
    return f"skipped: {missing}" if missing else ""


def _options(app, run_args: str) -> list:
    given = shlex.split(run_args)
    options = []
    for name, value in (("--ddr", app.ddr), ("--cxl", app.cxl)):
        if not any(word == name or word.startswith(f"{name}=") for word in given):
            options += [name, value]
    return options + given


def _one(app, arguments) -> dict:
    """Runs one app; nothing of it is left but what `--keep` asks for."""
    report = {"name": app.name, "about": app.about, "result": "same", "reason": "", "differences": [],
              "run_options": _options(app, arguments.run_args)}
    missing = app.missing()
    if missing:
        return dict(report, result="skipped", reason=missing)
    build = arguments.build_dir or str(build_dir("release"))
    service = Harness(devices=POOL_DEVICES, name="apps", build_dir=build, mount=can_mount(), keep=arguments.keep,
                      daemon_args=["--allow-unmapped-uids"])
    try:
        configuration = service.directory / "terraced.toml"
        configuration.write_text('[clients]\nuserfaultfd = "all"\n')  # databases run as a user of their own, and move
        service.start("--config", configuration)
        service.create_pool("p")
        # Programs that give up root reach the socket and leave their numbers.
        service.directory.chmod(0o755)
        (service.directory / "stats").mkdir(mode=0o777)
        (service.directory / "stats").chmod(0o777)
        rounds = [(_side(app, None, service, arguments, at), _side(app, service, service, arguments, at))
                  for at in range(arguments.repeat)]
        report.update(_compare(rounds))
        service.wait_free()
        service.check_invariants()
    except AppSkipped as skipped:
        report.update(result="skipped", reason=str(skipped))
    except (Failure, HarnessError) as failure:
        report.update(result="failed", reason=str(failure))
    finally:
        service.close()
    return report


def _side(app, tiered, service, arguments, at: int) -> dict:
    """One run of one side, in the folder that both sides have."""
    folder = service.directory / "work"
    folder.mkdir()
    folder.chmod(0o755)
    side = Side(folder, tiered, _options(app, arguments.run_args), arguments.quick)
    try:
        with Heartbeat(f"{app.name} {'under terrace run' if tiered else 'plain'}"):
            done = side.measured(app.action)
        return dict(done, commands=side.commands())
    except (Failure, HarnessError) as failure:
        raise Failure(f"{'under terrace run' if tiered else 'plain'}: {failure}") from None
    finally:
        if arguments.keep:
            folder.rename(service.directory / f"{side.name}{at}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _compare(rounds: list) -> dict:
    """The report of an app that ran to its end on both sides."""
    differences = []
    for plain, tiered in rounds:
        for name in sorted(plain["results"].keys() | tiered["results"].keys()):
            pair = (plain["results"].get(name), tiered["results"].get(name))
            if pair[0] != pair[1]:
                differences.append({"what": name, "plain": pair[0], "terrace": pair[1]})

    def middle(side: int, key: str) -> float:
        return statistics.median(pair[side][key] for pair in rounds)

    plain, tiered = rounds[-1]
    report = {"result": "differs" if differences else "same", "differences": differences, "compared": len(plain["results"]),
              "terrace": tiered["terrace"], "said": tiered["said"],
              "commands": {"plain": plain["commands"], "terrace": tiered["commands"]}}
    for key in ("seconds", "rss_bytes_peak"):
        before, after = middle(0, key), middle(1, key)
        report[key] = {"plain": before, "terrace": after, "ratio": after / before if before else None}
    report["rates"] = {name: {"plain": value, "terrace": tiered["rates"].get(name),
                              "ratio": tiered["rates"].get(name, 0) / value if value else None}
                       for name, value in plain["rates"].items()}
    counted = tiered["terrace"]
    if counted["unsupervised"] == counted["runs"]:
        report["reason"] = "ran without Terrace"
    elif counted["live_bytes_peak"] == 0:
        report["reason"] = "allocated nothing in the arena"
    elif counted["allocations_cxl"] == 0 and counted["demotions"] == 0:
        report["reason"] = "stayed within DDR"
    return report


def _tell(report: dict) -> None:
    """What is worth a line at once: differences, reasons, what `terrace run` said, rates."""
    if report["result"] in ("failed", "skipped"):
        print(f"   {report['result']}: {report['reason']}", flush=True)
        return
    for difference in report["differences"]:
        complain(f"{report['name']}: {difference['what']} differs\n  plain    {str(difference['plain'])[:600]}\n"
                 f"  terrace  {str(difference['terrace'])[:600]}")
    for line in report["said"][:5]:
        note(line)
    for name, rate in report["rates"].items():
        note(f"{name}: {rate['plain']:,.0f} plain, {rate['terrace']:,.0f} under terrace run ({rate['ratio']:.2f})")


_REMARKS = (("refused", "requests refused"), ("forks_refused", "forks refused"), ("fallbacks", "fall-backs"),
            ("no_stats", "runs without figures"))


def _row(report: dict) -> tuple:
    if report["result"] in ("failed", "skipped"):
        return (report["name"], report["result"], "-", "-", "-", "-", report["reason"].splitlines()[0][:100])
    seconds, memory, counted = report["seconds"], report["rss_bytes_peak"], report["terrace"]
    remarks = [report["reason"]] if report["reason"] else []
    remarks += [f"{counted[key]} {text}" for key, text in _REMARKS if counted[key]]
    return (report["name"], f"{report['result']} ({report['compared']})",
            f"{seconds['ratio']:.2f} ({seconds['plain']:.1f} s)",
            f"{memory['ratio']:.2f} ({memory['plain'] / 2**20:.0f} MiB)" if memory["ratio"] else "-",
            f"{counted['leased_bytes_peak'] / 2**20:.0f} MiB", f"{counted['promotions']}/{counted['demotions']}",
            "; ".join(remarks))
