# SPDX-License-Identifier: Apache-2.0
"""How many tests run side by side. Most of them wait most of their time: for a TTL, a host lease, rounds of an engine. So
tests/schedule/costs.txt says what each takes of a core, and ctest begins the longest that still finds room.

`ctest -j` by hand counts programs, as ever: only a resource file gives the shares a meaning."""

import json
import pathlib

# Shares are means. What is given out beyond the cores keeps them at work while a test waits that computes at other times.
SHARES_PER_CORE = 150
TESTS_PER_CORE = 3  # however little they compute: more starve those that wait for much at once


def at_a_time(cores: int) -> int:
    return TESTS_PER_CORE * cores


def resources(cores: int) -> dict:
    """ctest's resource file: all cores as one device, so that a test may take of whichever is free."""
    return {"version": {"major": 1, "minor": 0}, "local": [{"cores": [{"id": "all", "slots": SHARES_PER_CORE * cores}]}]}


def options(folder: pathlib.Path, cores: int) -> list:
    """ctest's options for a build folder, where the resource file is written."""
    file = folder / "cores.json"
    file.write_text(json.dumps(resources(cores)) + "\n", encoding="utf-8")
    return [f"-j{at_a_time(cores)}", "--resource-spec-file", str(file)]


def without_a_line(listed: dict) -> list:
    """The tests of `ctest --show-only=json-v1` that costs.txt says nothing of."""
    return [test["name"] for test in listed["tests"]
            if not any(each["name"] == "RESOURCE_GROUPS" for each in test.get("properties", []))]
