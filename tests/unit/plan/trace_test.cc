// SPDX-License-Identifier: Apache-2.0
// Reading a trace: what is accepted, and that each mistake is named with its line, its column and the cure.
#include "tests/unit/plan/traces.h"

using namespace terrace;
using namespace terrace::plan;

namespace {

const std::string header = "name,memory_mib,creation_time,deletion_time\n";

std::string refusal(const std::string& text) {
  const Result<Trace> trace = parse_trace(text, "pods.csv");
  REQUIRE_FALSE(trace.ok());
  CHECK(trace.error().code == ErrorCode::invalid_argument);
  return trace.error().detail;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("Trace: columns are found by name, rows are sorted by their start, the rest is ignored") {
  const auto trace = parse_trace("deletion_time,x,memory_mib,creation_time\n30,a,2048,20\n15,b,1024,10\n", "t");
  REQUIRE(trace.ok());
  REQUIRE(trace->requests.size() == 2);
  CHECK(trace->requests[0].bytes == 1 * gib);
  CHECK(trace->requests[0].start_s == 10);
  CHECK(trace->requests[0].end_s == 15);
  CHECK(trace->requests[1].bytes == 2 * gib);
  CHECK(trace->begin_s == 10);
  CHECK(trace->end_s == 30);
  CHECK_FALSE(trace->has_cpu);
  CHECK_FALSE(trace->has_gpu);
}

TEST_CASE("Trace: a row without an end lives to the end; rows of no memory are kept and counted") {
  const auto trace = parse_trace(header + "a,0,5,9\nb,1024,7,\nc,1024,8,50\n", "t");
  REQUIRE(trace.ok());
  CHECK(trace->requests.size() == 3);
  CHECK(trace->without_memory == 1);
  CHECK(trace->without_end == 1);
  CHECK(trace->requests[1].end_s == 50);
}

TEST_CASE("Trace: what is alive at once is measured, an end frees before a start of the same second") {
  const Trace trace = trace_of({{3, 0, 10}, {2, 5, 10}, {4, 10, 20}, {9, 10, 10}});
  CHECK(trace.peak_bytes == 5 * gib);  // not 9: the last is alive for no time
  CHECK(trace.peak_requests == 2);
  CHECK(trace.largest_bytes == 9 * gib);
}

TEST_CASE("Trace: CRLF, a byte order mark, empty lines, blanks and quoted fields are read") {
  const auto trace = parse_trace(
      "\xef\xbb\xbf\"name\",memory_mib , creation_time,deletion_time\r\n\r\n\"a, \"\"b\"\"\", 512 ,1,2\r\n",
      "t");
  REQUIRE(trace.ok());
  REQUIRE(trace->requests.size() == 1);
  CHECK(trace->requests[0].bytes == 512 * mib);
}

TEST_CASE("Trace: GPUs are counted in thousandths, a share of one or several whole ones") {
  const auto trace = parse_trace(
      "memory_mib,creation_time,deletion_time,cpu_milli,num_gpu,gpu_milli\n1,0,1,4000,1,460\n1,0,1,500,8,1000\n"
      "1,0,1,1,2,\n1,0,1,1,0,0\n",
      "t");
  REQUIRE(trace.ok());
  CHECK(trace->has_cpu);
  CHECK(trace->has_gpu);
  CHECK(trace->requests[0].cpu_milli == 4000);
  CHECK(trace->requests[0].gpu_milli == 460);
  CHECK(trace->requests[1].gpu_milli == 8000);
  CHECK(trace->requests[2].gpu_milli == 2000);
  CHECK(trace->requests[3].gpu_milli == 0);
}

TEST_CASE("Trace: a mistake is named with file, line, column and how to fix it") {
  CHECK(refusal(header + "a,1,0,1\n\nb,12.5,0,1\n") ==
        "pods.csv, line 4: column memory_mib (field 2): '12.5' is no whole number of MiB; write digits only, "
        "without sign, point or unit");
  CHECK(contains(refusal(header + "a,1,-5,1\n"), "line 2: column creation_time (field 3): '-5' is no whole"));
  CHECK(contains(refusal(header + "a,,0,1\n"), "column memory_mib (field 2) is empty"));
  CHECK(contains(refusal(header + "a,1,,1\n"), "column creation_time (field 3) is empty"));
  CHECK(contains(refusal(header + "a,1,9,5\n"), "deletion_time 5 is before creation_time 9"));
  CHECK(contains(refusal(header + "a,1,0\n"), "has 3 fields, the header 4; add what is missing"));
  CHECK(contains(refusal(header + "a,1,0,1,\n"), "has 5 fields, the header 4; quote a field"));
  CHECK(contains(refusal(header + "\"a,1,0,1\n"), "field 1 opens a quote that this line does not close"));
  CHECK(contains(refusal(header + "a,1125899906842625,0,1\n"), "is beyond 1073741824 MiB; is the unit right?"));
  CHECK(contains(refusal(header + "a,99999999999999999999999,0,1\n"), "column memory_mib"));
}

TEST_CASE("Trace: a file that is none is refused by its first line") {
  CHECK(contains(refusal(""), "the file is empty"));
  CHECK(contains(refusal("\n \n"), "the file is empty"));
  CHECK(contains(refusal(header), "there is a header and no row below it"));
  CHECK(contains(refusal("openb-pod-0000,12000,16384\n"), "line 1: the header has no column 'memory_mib'"));
  CHECK(contains(refusal("memory_mib,memory_mib,creation_time,deletion_time\n"),
                 "names the column 'memory_mib' twice"));
}

TEST_CASE("Trace: percentiles are of the requests that ask for memory") {
  const Trace trace = trace_of({{0, 0, 1}, {1, 0, 1}, {2, 0, 1}, {3, 0, 1}, {40, 0, 1}});
  CHECK(request_bytes_at(trace, 500) == 2 * gib);
  CHECK(request_bytes_at(trace, 999) == 40 * gib);
  CHECK(request_bytes_at(trace, 0) == 1 * gib);
  CHECK(request_bytes_at(trace_of({{0, 0, 1}}), 500) == 0);
}
