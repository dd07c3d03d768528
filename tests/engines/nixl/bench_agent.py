# SPDX-License-Identifier: Apache-2.0
"""agent.py with files, and a clock."""

import os
import time

import agent
from agent import Agent, main


class MeasuringAgent(Agent):
    def file(self, path, size):
        """Registers a file for the backend POSIX; returns the device that stands for it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, size)
        self.agent.register_memory([(0, size, descriptor, "")], "FILE", ["POSIX"])
        return descriptor

    def measure(self, handle, seconds):
        """Seconds of each run, for at least so long in all; the first run, which meets pages for the first time, is left out."""
        assert self.run(handle) == "DONE"
        times, end = [], time.perf_counter() + seconds
        while len(times) < 5 or time.perf_counter() < end:
            begin = time.perf_counter()
            state = self.run(handle)
            times.append(time.perf_counter() - begin)
            assert state == "DONE"
        return times


if __name__ == "__main__":
    agent.Agent = MeasuringAgent
    main()
