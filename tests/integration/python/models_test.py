# SPDX-License-Identifier: Apache-2.0
"""Models in leases and in files, opened in place: views, several processes, references by pickle, what is refused."""

import gc
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import unittest

import models_base
import python_base
from python_base import MIB, needs_numpy, needs_torch, numpy, terrace, wait_until


def child_sum(tensor, model):
    """What another process sees of what it was given by reference, and where it stores."""
    array = tensor.numpy()
    seen = int(array.astype("int64").sum()), model["bias"].numpy().tolist(), tensor.shape
    if model.takes_stores:
        array[...] = 0  # to a copy of its own
    return seen


class InLeases(models_base.Served):
    def open(self, **arguments):
        return terrace.open_model("llama", session=self.session, **arguments)

    def test_a_model_is_a_mapping_of_names_to_tensors(self):
        model = self.open()
        self.assertEqual(model.keys(), [one[0] for one in self.TENSORS])
        self.assertEqual((len(model), list(model), "half" in model, "none" in model, 7 in model), (6, model.keys(), True, False, False))
        self.assertEqual([tensor.name for tensor in model.values()], model.keys())
        self.assertEqual([(name, tensor.name) for name, tensor in model.items()], [(name, name) for name in model.keys()])
        self.assertEqual(model.metadata, {"format": "pt", "made by": "a test"})
        self.assertEqual(model.nbytes, sum(len(content) for *_, content in self.TENSORS))
        self.assertRegex(repr(model), r"<terrace.Model 'lease \d+' 6 tensors>")
        for name, dtype, shape, content in self.TENSORS:
            tensor = model[name]
            self.assertEqual((tensor.dtype, tensor.shape, tensor.ndim, tensor.nbytes, tensor.hint),
                             (dtype, shape, len(shape), len(content), "weights"))
            self.assertEqual(memoryview(tensor).tobytes(), content)
        model.verify()
        with self.assertRaisesRegex(terrace.NotFound, "lease .*'none'"):
            model["none"]

    def test_views_are_as_numpy_s(self):
        tensor = self.open()["bias"]
        self.assertEqual(memoryview(tensor[1:3]).tolist(), [-2, 3])
        self.assertEqual((tensor[::-1].strides, memoryview(tensor[::-1]).tolist()), ((-1,), [-4, 3, -2, 1]))
        self.assertEqual((tensor[2].shape, memoryview(tensor[2]).tolist()), ((), 3))
        self.assertEqual((tensor[None, ..., 1:].shape, len(tensor), tensor.size), ((1, 3), 4, 4))
        self.assertEqual([memoryview(one).tolist() for one in tensor], [1, -2, 3, -4])
        for key, error in ((4, IndexError), ("a", TypeError), ((0, 0), IndexError)):
            with self.assertRaises(error):
                tensor[key]

    @needs_numpy
    def test_arrays_are_the_lease_s_memory_and_outlive_the_model(self):
        with self.open() as model:
            array = model["embed"].numpy()
            self.assertEqual(array.shape, (64, 32))
            self.assertEqual(array.ctypes.data % 64, 0)
        with self.assertRaisesRegex(terrace.InvalidArgument, "model was closed"):
            model.keys()
        del model
        self.session = None
        gc.collect()
        self.assertEqual(array.tobytes(), self.TENSORS[0][3])

    @needs_numpy
    def test_a_store_stays_in_this_process(self):
        ours, theirs = self.open(), self.open()
        ours["bias"].numpy()[0] = 77
        self.assertEqual(ours["bias"].numpy()[0], 77)
        self.assertEqual(theirs["bias"].numpy()[0], 1)
        with self.assertRaisesRegex(terrace.Corrupt, "'bias' does not have its recorded checksum"):
            ours.verify()
        theirs.verify()

    @needs_torch
    def test_torch_takes_them_without_a_copy(self):
        torch = python_base.torch
        model = self.open()
        half = model["half"].torch()
        self.assertEqual((half.dtype, half.tolist()), (torch.bfloat16, [1.0, 2.0, -3.0]))
        self.assertEqual(model["half"].torch().data_ptr(), half.data_ptr())
        self.assertEqual(torch.from_dlpack(model["embed"]).data_ptr(), model["embed"].torch().data_ptr())
        half.add_(1)
        self.assertEqual(self.open()["half"].torch().tolist(), [1.0, 2.0, -3.0])

    def test_several_processes_at_once(self):
        """Each maps the lease's own pages: what all of them have resident is counted once."""
        big = self.write("big.safetensors", models_base.file_of([("w", "U8", (48 * MIB,), bytes(range(256)) * (48 * MIB // 256))]))
        self.t.cli("tensor", "import", big, "--label", "big")
        program = ("import sys, terrace\n"
                   "model = terrace.open_model('big')\n"
                   "view = memoryview(model['w'])\n"
                   "print(sum(view[i] for i in range(0, len(view), 4096)), flush=True)\n"
                   "sys.stdin.readline()\n")
        environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(terrace.__file__).parents[1]), TERRACE_SOCKET=str(self.t.socket))
        children = [subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True) for _ in range(3)]
        for child in children:
            self.addCleanup(child.stdout.close)
            self.addCleanup(child.wait)
            self.addCleanup(child.kill)
            self.addCleanup(child.stdin.close)
        self.assertEqual([child.stdout.readline() for child in children], ["0\n"] * 3)
        shares = [sum(share_of_model(child.pid)) for child in children]
        self.assertLess(sum(shares), 2 * 48 * MIB, f"proportional shares of {shares} bytes: each has a copy")

    @needs_numpy
    def test_other_processes_get_references(self):
        model = self.open()
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for view, total in ((model["bias"], -2), (model["bias"][::2], 4), (model["bias"][1:1], 0)):
                self.assertEqual(pool.apply_async(child_sum, (view, model)).get(120), (total, [1, -2, 3, -4], view.shape))
        self.assertEqual(model["bias"].numpy().tolist(), [1, -2, 3, -4])
        text = pickle.dumps(model["embed"])
        self.assertLess(len(text), 1000)
        self.assertEqual(memoryview(pickle.loads(text)).tobytes(), self.TENSORS[0][3])
        self.assertIs(pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(model)))

    def test_a_reference_that_lies_or_is_late_is_refused(self):
        tensor = self.open()["bias"]
        reopen, (place, name, *_) = tensor.__reduce__()
        for shape, strides, offset in (((5,), (1,), 0), ((4,), (1,), 1), ((4,), (-1,), 0), ((2,), (1 << 62,), 0), ((1 << 63, 2), (1, 1), 0)):
            with self.assertRaises(terrace.Error):
                reopen(place, name, shape, strides, offset)
        text = pickle.dumps(tensor)
        del tensor
        gc.collect()
        self.t.cli("lease", "release", "llama")
        with self.assertRaises(terrace.NotFound):
            pickle.loads(text)

    def test_what_is_no_model_says_so(self):
        with self.assertRaisesRegex(terrace.NotFound, "'gpt'"):
            terrace.open_model("gpt", session=self.session)
        lease = self.session.grant(2 * MIB, label="plain")
        with self.assertRaisesRegex(terrace.NotFound, "lease %d" % lease.id):
            terrace.open_model("plain", session=self.session)
        memoryview(terrace.Mapping(lease))[:8] = b"TRRCTLG1"
        with self.assertRaises((terrace.Corrupt, terrace.Busy, terrace.VersionMismatch)):
            terrace.open_model(lease)
        lease.release()
        with self.assertRaises(terrace.LeaseLost):
            terrace.open_model(lease)
        for wrong in (7.5, None, b"llama"):
            with self.assertRaises((terrace.Error, TypeError, RuntimeError)):
                terrace.open_model(wrong, session=self.session)

    def test_a_lease_that_is_taken_back_is_an_error_for_who_opens_it(self):
        model = self.open()
        self.t.cli("lease", "revoke", model_lease(model), "--grace", "0s", "--reason", "maintenance")
        wait_until(lambda: any(notice.state == "lost" for notice in self.session.notices()), 60, "the notice")
        with self.assertRaises(terrace.Error):
            self.open()
        with self.assertRaises(terrace.LeaseLost):
            model.verify()


def model_lease(model):
    return model.source.split()[1]


def share_of_model(pid):
    """The proportional shares (bytes) of mappings of 48 MiB and more, of /proc/PID/smaps."""
    share, big = [], False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if "-" in key.split()[0] and not value.strip().endswith("kB"):
            first, last = (int(number, 16) for number in line.split()[0].split("-"))
            big = 48 * MIB <= last - first < 64 * MIB
        elif key == "Pss" and big:
            share.append(int(value.split()[0]) * 1024)
    return share


class InFiles(models_base.Files):
    TENSORS = models_base.Served.TENSORS

    def test_a_file_a_folder_and_shards_are_models(self):
        one = self.write("one.safetensors", models_base.file_of(self.TENSORS[:2], {"format": "pt"}))
        self.assertEqual(terrace.Model(one).keys(), ["embed", "bias"])
        self.assertEqual(terrace.Model(self.folder).metadata, {"format": "pt"})
        self.write("two.safetensors", models_base.file_of(self.TENSORS[2:]))
        with self.assertRaisesRegex(terrace.InvalidArgument, "2 models in it"):
            terrace.Model(self.folder)
        index = self.write("model.safetensors.index.json", b'{"weight_map": {"embed": "one.safetensors", "bias": "one.safetensors", '
                           b'"half": "two.safetensors"}}')
        for path in (index, self.folder, index.encode()):
            model = terrace.Model(path)
            self.assertEqual(sorted(model), sorted(name for name, *_ in self.TENSORS))
            for name, _, _, content in self.TENSORS:
                self.assertEqual(memoryview(model[name]).tobytes(), content)
        with self.assertRaisesRegex(terrace.Unsupported, "no checksums"):
            model.verify()

    @needs_numpy
    def test_a_file_is_referred_to_by_its_path(self):
        path = self.write("one.safetensors", models_base.file_of(self.TENSORS))
        array = pickle.loads(pickle.dumps(terrace.Model(path)["bias"][1:])).numpy()
        array[0] = 5
        self.assertEqual(array.tolist(), [5, 3, -4])
        self.assertEqual(terrace.Model(path)["bias"].numpy().tolist(), [1, -2, 3, -4])
        self.assertEqual(pathlib.Path(path).read_bytes(), models_base.file_of(self.TENSORS))


if __name__ == "__main__":
    python_base.harness.main()
