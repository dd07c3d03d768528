// SPDX-License-Identifier: Apache-2.0
// The program of 80 instructions that the kernel runs for KernelPins: it walks segments of 32-bit counters and adds
// up what differs from `idle`. It needs bpf_loop (Linux 5.17), and with it a description of its two functions (BTF).
//
// Assembled here and not compiled: clang's BPF target would be one more thing to build with, for this alone.
//
// Threads   Plain data and functions.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <vector>

namespace terrace::daemon {

// The one element of the first map. Written before a run, and by it.
struct CountWork {
  uint64_t thread = 0;  // kernel's number of the thread for which it runs; in others it does nothing
  uint64_t address = 0, left = 0, segment = 0;  // where it is
  uint64_t stride = 0;                          // bytes from one counter to the next
  uint64_t idle = 0;
  uint64_t read = 0, failed = 0;        // counters, and those of them that could not be read
  uint64_t blocks = 0, difference = 0;  // counters that differ, and the sum of their differences
  uint64_t finished = 0;                // all segments were walked: from then on it does nothing
  uint64_t runs = 0;
};

// An element of the second map; a count of 0 ends the list.
struct CountSegment {
  uint64_t address = 0;
  uint64_t count = 0;
};

struct CountProgram {
  std::vector<bpf_insn> code;
  uint32_t step = 0;  // the instruction at which the second function begins
};

// `work` and `segments` are descriptors of the two maps, both arrays.
CountProgram count_program(int work, int segments);
// The types that the kernel wants of the program: types 3 and 4 are its functions.
std::vector<char> count_program_types();

}  // namespace terrace::daemon
