# SPDX-License-Identifier: Apache-2.0
"""A process with one NIXL agent, told what to do by lines of JSON: [name of a method of Agent, arguments...]. It answers each with
what the method returns, or {"error": "..."}.

    agent.py NAME
"""

import base64
import hashlib
import json
import mmap
import os
import random
import sys
import time

import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config

import terrace

BACKEND = "TERRACE"


def content(seed, size):
    return random.Random(seed).randbytes(size)


def digest(memory):
    return hashlib.sha256(memory).hexdigest()


class Agent:
    def __init__(self, name):
        self.name = name
        self.agent = nixl_agent(name, nixl_agent_config(backends=[]))
        self.areas, self.kept, self.handles = {}, [], {}

    def create(self, backend=BACKEND, **parameters):
        self.agent.create_backend(backend, parameters)
        return self.agent.get_backend_mem_types(backend)

    # -- memory: areas by name

    def private(self, area, size, register=True):
        """Memory of this process alone."""
        return self._area(area, numpy.zeros(size, numpy.uint8), register)

    def lease(self, area, label, offset=0, size=None, by="library", register=True):
        """Memory of a lease: mapped by Terrace's library, or from a path by the program itself."""
        if by == "library":
            lease = terrace.Session().attach(label)
            mapping = terrace.Mapping(lease)
            self.kept += [lease, mapping]
            memory = mapping.numpy()
        else:
            with open(by, "r+b") as file:
                part = mmap.mmap(file.fileno(), size, offset=offset)
            self.kept.append(part)
            return self._area(area, numpy.frombuffer(part, numpy.uint8), register)
        return self._area(area, memory[offset:offset + (size or len(memory))], register)

    def _area(self, area, memory, register):
        self.areas[area] = memory
        if register:
            self.register(area)
        return memory.ctypes.data

    def register(self, area, cut=0):
        memory = self.areas[area]
        self.agent.register_memory([(memory.ctypes.data, memory.nbytes - cut, 0, "")], "DRAM", backends=list(self.agent.backends))

    def fill(self, area, offset, size, seed):
        self.areas[area][offset:offset + size] = numpy.frombuffer(content(seed, size), numpy.uint8)

    def digest(self, area, offset, size):
        return digest(self.areas[area][offset:offset + size].tobytes())

    # -- other agents

    def metadata(self):
        return base64.b64encode(self.agent.get_agent_metadata()).decode()

    def load(self, metadata):
        name = self.agent.add_remote_agent(base64.b64decode(metadata))
        return name.decode() if isinstance(name, bytes) else name

    def forget(self, agent):
        self.agent.remove_remote_agent(agent)

    # -- transfers

    def prepare(self, handle, operation, area, pieces, address, agent, notification="", kind="DRAM", backend=BACKEND):
        """`pieces`: (offset in the area, offset from `address`, bytes), and for objects their device after that."""
        first = self.areas[area].ctypes.data
        here = self.agent.get_xfer_descs([(first + piece[0], piece[2], 0) for piece in pieces], "DRAM")
        there = self.agent.get_xfer_descs([(address + piece[1], piece[2], piece[3] if len(piece) > 3 else 0) for piece in pieces], kind)
        self.handles[handle] = self.agent.initialize_xfer(operation, here, there, agent, notification.encode(), [backend])

    def post(self, handle):
        return self.agent.transfer(self.handles[handle])

    def wait(self, handle):
        while (state := self.agent.check_xfer_state(self.handles[handle])) == "PROC":
            pass
        return state

    def run(self, handle):
        state = self.post(handle)
        return self.wait(handle) if state == "PROC" else state

    def release(self, handle):
        self.handles.pop(handle).release()

    def transfer(self, *arguments, **named):
        self.prepare("transfer", *arguments, **named)
        try:
            return self.run("transfer")
        finally:
            self.release("transfer")

    def give_up(self, rounds, area, address, agent):
        """Posts transfers of an area of ones, takes each back before it is done, and stores something else there."""
        memory = self.areas[area]
        for number in range(rounds):
            memory[:] = 1
            pieces = [(at, at, 4096) for at in range(0, memory.nbytes, 4096)]
            self.prepare("given up", "WRITE", area, pieces, address, agent, "given up")
            self.post("given up")
            for _ in range(number % 30):  # each does a part itself; meanwhile a thread of the backend has begun
                self.agent.check_xfer_state(self.handles["given up"])
            self.release("given up")
            memory[::4096] = 255  # fast: a copy that goes on would take some of it

    def largest(self, area):
        return int(self.areas[area].max())

    def until_it_fails(self, handle, times):
        """Posts it again and again. The number of times that it went well, and the error."""
        for done in range(times):
            try:
                if self.run(handle) != "DONE":
                    return [done, "ERR"]
            except Exception as error:
                return [done, type(error).__name__]
        return [times, ""]

    # -- notifications

    def notify(self, agent, message):
        self.agent.send_notif(agent, message.encode())  # its `backend` is a TypeError in NIXL 1.5.1

    def notify_many(self, agent, count):
        for number in range(count):
            self.notify(agent, str(number))

    def notifications(self, count, patience_s=60):
        """At least so many, as [agent, message]; and what comes after them in the same call."""
        found, end = [], time.monotonic() + patience_s
        while len(found) < count and time.monotonic() < end:
            for agent, messages in self.agent.get_new_notifs([BACKEND]).items():
                found += [[agent, message.decode()] for message in messages]
        return found

    def send_stream(self, area, address, agent, rounds, size):
        """Writes other bytes each round, and says so in the notification; the next round begins when the receiver answers."""
        for number in range(rounds):
            self.fill(area, 0, size, f"round{number}")
            state = self.transfer("WRITE", area, [(0, 0, size)], address, agent, f"round{number}")
            answers = self.notifications(1)
            if state != "DONE" or answers != [[agent, f"seen{number}"]]:
                return [number, state, answers]
        return rounds

    def receive_stream(self, area, agent, rounds, size):
        for number in range(rounds):
            found = self.notifications(1)
            expected = [[agent, f"round{number}"]]
            if found != expected or self.digest(area, 0, size) != digest(content(f"round{number}", size)):
                return [number, found]
            self.notify(agent, f"seen{number}")
        return rounds

    # -- objects

    def objects(self, keys, size):
        """Registers them: the device of each is its place in the list."""
        self.agent.register_memory([(0, size, number, key) for number, key in enumerate(keys)], "OBJ", [BACKEND])

    def object(self, operation, area, pieces, notification="", agent=None):
        """`pieces`: (offset in the area, offset in the object, bytes, number of the object)"""
        return self.transfer(operation, area, pieces, 0, agent or self.name, notification, kind="OBJ")

    def put_for_ever(self, area, size, number):
        while True:
            self.object("WRITE", area, [(0, 0, size, number)])

    def query(self, keys):
        return self.agent.query_memory([(0, 0, number, key) for number, key in enumerate(keys)], BACKEND, "OBJ")


def main():
    agent = Agent(sys.argv[1])  # or what has taken its place
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NIXL's lines
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        name, arguments, named = json.loads(line)
        try:
            answer = {"value": getattr(agent, name)(*arguments, **named)}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
