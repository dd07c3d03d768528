// SPDX-License-Identifier: Apache-2.0
// A trace of requests: each with its bytes of memory, its begin and its end.
//
// Place     First step of `terrace plan`: CSV text -> Trace -> replay. Pure; cli/tools/plan.cc reads the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace terrace::plan {

struct Request {
  uint64_t bytes = 0;      // 0: a row that asks for no memory; it is served and counted
  uint64_t start_s = 0;    // seconds of the trace's own clock
  uint64_t end_s = 0;      // not before start_s; the trace's end where the row has none
  uint64_t cpu_milli = 0;  // 1000: one core
  uint64_t gpu_milli = 0;  // 1000: one whole GPU
};

struct Trace {
  std::vector<Request> requests;  // by start_s; rows of one second in the file's order
  uint64_t begin_s = 0;
  uint64_t end_s = 0;           // the last time that any row names
  uint64_t without_end = 0;     // rows that live to the end
  uint64_t without_memory = 0;  // rows of 0 bytes
  bool has_cpu = false;         // the columns for it are there
  bool has_gpu = false;
  uint64_t largest_bytes = 0;
  uint64_t peak_bytes = 0;     // asked for at once, if nothing were refused
  uint64_t peak_requests = 0;  // alive at once
};

// Reads CSV with a header line. Columns are found by name, in any order; others are ignored:
//   memory_mib, creation_time, deletion_time   required: whole MiB; whole seconds; the same, or empty (to
//                                              the trace's end)
//   cpu_milli, num_gpu, gpu_milli              used if they are there
// Lines may end in CRLF, fields may be quoted, empty lines are skipped.
//
// Errors    invalid_argument  names `name`, the line, the column, the text found there and how to fix it
Result<Trace> parse_trace(std::string_view text, const std::string& name);

// A request's bytes such that `permille` of all requests that ask for memory are no larger; 0 without any.
uint64_t request_bytes_at(const Trace& trace, uint64_t permille);

}  // namespace terrace::plan
