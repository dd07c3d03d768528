# SPDX-License-Identifier: Apache-2.0
"""What it costs Python to see a tensor: Tensor -> numpy and torch. A child of bench_tensor; PYTHONPATH has the package.

Prints one JSON object: microseconds a call, made and dropped, the loop's own time taken off; the median of all rounds.
"""

import argparse
import json
import statistics
import timeit

import terrace


def microseconds(statement: str, names: dict, calls: int, rounds: int) -> float:
    timer, empty = timeit.Timer(statement, globals=names), timeit.Timer("pass", globals=names)
    timer.timeit(calls)  # warm
    return statistics.median((timer.timeit(calls) - empty.timeit(calls)) / calls * 1e6 for _ in range(rounds))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    calls, rounds = (2_000, 3) if parser.parse_args().smoke else (50_000, 15)
    pool = terrace.TensorPool(ddr_bytes=8 << 20)
    names = {"tensor": pool.create((256, 1024), "float32", name="t")}
    results = {}
    try:
        import numpy
        names["numpy"] = numpy
        results["python_view_overhead_us"] = microseconds("tensor.numpy()", names, calls, rounds)
        results["python_asarray_us"] = microseconds("numpy.asarray(tensor)", names, calls, rounds)
        # What numpy itself takes for a view of an array.
        names["array"] = names["tensor"].numpy()
        results["numpy_view_us"] = microseconds("array.view()", names, calls, rounds)
        assert names["array"].ctypes.data == names["tensor"].address, "a copy was made"
    except ImportError as missing:
        results["python_skipped"] = str(missing)
    try:
        import torch  # noqa: F401
        results["python_torch_us"] = microseconds("tensor.torch()", names, calls // 10, rounds)
    except ImportError:
        pass
    results["python_slice_us"] = microseconds("tensor[16:32]", names, calls, rounds)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
