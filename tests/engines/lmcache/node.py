# SPDX-License-Identifier: Apache-2.0
"""A process with LMCache's own classes (node_main.py).

    node.py adapter SPEC...              NativeConnectorL2Adapter, as `--l2-adapter SPEC` makes it
    node.py manager ARGUMENTS...         StorageManager: the L1, the L2s and the controllers, by the server's arguments
"""

import argparse
import os
import pathlib
import random
import select
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from node_main import main  # noqa: E402

os.environ["LMCACHE_TRACK_USAGE"] = "false"
os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
import torch  # noqa: E402
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec  # noqa: E402
from lmcache.v1.distributed.config import add_storage_manager_args, parse_args_to_config  # noqa: E402
from lmcache.v1.distributed.l2_adapters import create_l2_adapter  # noqa: E402
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj  # noqa: E402
from lmcache.v1.multiprocess.config import add_mp_server_args  # noqa: E402
from lmcache.v1.platform import consume_fd  # noqa: E402

PATIENCE_S = 120


def key_of(name, model="llama", rank=0):
    return ObjectKey(chunk_hash=random.Random(name).randbytes(32), model_name=model, kv_rank=rank)


def content(name, size):
    return torch.frombuffer(bytearray(random.Random(name).randbytes(size)), dtype=torch.uint8)


def memory(size):
    """Room in the way of LMCache's L1, all of it 0xEE."""
    raw = torch.full((size,), 0xEE, dtype=torch.uint8)
    return TensorMemoryObj(raw, MemoryObjMetadata(shape=torch.Size([size]), dtype=torch.uint8, address=0, phy_size=size,
                                                  fmt=MemoryFormat.KV_2LTD, ref_count=1), parent_allocator=None)


def wait(fd, answer):
    """What `answer()` gives once it is not None; the eventfd says when to ask."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        if not poll.poll(PATIENCE_S * 1000):
            raise TimeoutError("no event within the patience")
        try:
            consume_fd(fd)
        except BlockingIOError:
            pass
        found = answer()
        if found is not None:
            return found


class Adapter:
    def __init__(self, *specs):
        config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=list(specs)))
        self.adapter = create_l2_adapter(config.adapters[0])

    def store(self, names, size, model="llama", rank=0):
        objects = [memory(size) for _ in names]
        for name, room in zip(names, objects):
            room.raw_data.copy_(content(name, size))
        return self._store([key_of(name, model, rank) for name in names], objects)

    def store_sizes(self, sizes):
        """Of several lengths in one batch."""
        objects = [memory(size) for size in sizes.values()]
        for (name, size), room in zip(sizes.items(), objects):
            room.raw_data.copy_(content(name, size))
        return self._store([key_of(name) for name in sizes], objects)

    def _store(self, keys, objects):
        task = self.adapter.submit_store_task(keys, objects)
        done = {}
        wait(self.adapter.get_store_event_fd(), lambda: done.update(self.adapter.pop_completed_store_tasks()) or done.get(task))
        return [done[task].is_successful(), done[task].bytes_transferred()]

    def store_on(self, names, size):
        """A batch of two after the other, told one by one, until the process is killed."""
        for pair in zip(names[::2], names[1::2]):
            self.store(pair, size)
            self.tell(pair)
        return "end"

    def lookup(self, names, model="llama", rank=0):
        keys = [key_of(name, model, rank) for name in names]
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        found = wait(self.adapter.get_lookup_and_lock_event_fd(), lambda: self.adapter.query_lookup_and_lock_result(task))
        self.adapter.submit_unlock(keys)
        return [found.test(index) for index in range(len(names))]

    def load(self, names, size, model="llama", rank=0):
        """Of each: right, wrong, or absent."""
        objects = [memory(size) for _ in names]
        task = self.adapter.submit_load_task([key_of(name, model, rank) for name in names], objects)
        loaded = wait(self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task))
        return ["absent" if not loaded.test(index) else "right" if torch.equal(room.raw_data, content(name, size)) else "wrong"
                for index, (name, room) in enumerate(zip(names, objects))]

    def delete(self, names):
        self.adapter.delete([key_of(name) for name in names])
        return self.adapter.get_usage().total_bytes_used

    def healthy(self):
        return self.adapter.report_status()["is_healthy"]

    def close(self):
        self.adapter.close()
        return "closed"


class Manager:
    def __init__(self, *arguments):
        parser = argparse.ArgumentParser()
        add_mp_server_args(parser)
        add_storage_manager_args(parser)
        self.manager = StorageManager(parse_args_to_config(parser.parse_args(list(arguments))))

    def write(self, names, size):
        rooms = self.manager.reserve_write([key_of(name) for name in names], self._layout(size))
        for name in names:
            rooms[key_of(name)].raw_data.view(torch.uint8)[:size].copy_(content(name, size))
        self.manager.finish_write(list(rooms))
        return len(rooms)

    def clear(self):
        """The L1, of what is not being copied to an L2 just now; whether all of it is gone."""
        self.manager.clear()
        return self.manager.get_l1_usage()[0] == 0

    def fetch(self, names, size):
        """[how many are in L1 now, how many of them came from an L2, what of them is right]."""
        keys = [key_of(name) for name in names]
        group = GroupedObjectKeys(keys=keys, object_group_id=0, layout_desc=self._layout(size))
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec(key_groups=[group]))
        assert self.manager.wait_prefetch_status(handle, PATIENCE_S)
        result = self.manager.query_prefetch_status(handle)
        hits = [key for index, key in enumerate(keys) if result.hit_cells[0].test(index)]
        right = 0
        if hits:
            with self.manager.read_prefetched_results(hits) as objects:
                right = sum(torch.equal(room.raw_data.view(torch.uint8)[:size], content(name, size))
                            for name, room in zip(names, objects))
            self.manager.finish_read_prefetched(hits)
        return [len(hits), result.l2_hit_count, right]

    def close(self):
        self.manager.close()
        return "closed"

    @staticmethod
    def _layout(size):
        return MemoryLayoutDesc(shapes=[torch.Size([size])], dtypes=[torch.uint8])


if __name__ == "__main__":
    main({"adapter": Adapter, "manager": Manager})
