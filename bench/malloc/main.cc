// SPDX-License-Identifier: Apache-2.0
// What Terrace's heap costs: the same programs under glibc, jemalloc, Terrace (the whole heap, and from 64 KiB
// on) and memkind's memtier, in turn in the same run.
//
//   bench_malloc [--smoke] [--json FILE] [--rounds N] [--part NAME]...
//                [--whole-library FILE] [--large-library FILE]
//
// docs/performance_malloc.md says what each figure is. No figure that misses its aim fails the run.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "bench/malloc/parts.h"

using namespace terrace::bench;

namespace {

double load_average() {
  double minute = 0;
  return ::getloadavg(&minute, 1) == 1 ? minute : 0;
}

long processors() {
  return ::sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  std::string json_file, whole_library, large_library;
  std::vector<std::string> wanted;
  struct Part {
    const char* name;
    void (*measure)(const Sizes&, Report&, Peer&);
  };
  constexpr Part parts[] = {{"pairs", measure_pairs},           {"glibc", measure_beside_glibc},
                            {"throughput", measure_throughput}, {"curve", measure_curve},
                            {"memory", measure_memory},         {"startup", measure_startup},
                            {"redis", measure_redis},           {"bgsave", measure_bgsave}};
  CLI::App app("The cost of a program's heap under Terrace, beside glibc, jemalloc and memtier");
  app.add_flag("--smoke", sizes.smoke, "A short run, to see that it works");
  app.add_option("--json", json_file, "Also write the numbers there");
  app.add_option("--rounds", sizes.rounds, "Of each comparison (default 5; 1 with --smoke)");
  app.add_option("--part", wanted,
                 "Only these: pairs, glibc, throughput, curve, memory, startup, redis, bgsave");
  app.add_option("--whole-library", whole_library, "In the place of this build's libterrace_heap.so")
      ->check(CLI::ExistingFile);
  app.add_option("--large-library", large_library, "In the place of this build's libterrace_malloc.so")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  if (sizes.smoke) sizes.rounds = 1;

  choose_libraries(whole_library, large_library);
  Report report;
  Peer peer;
  report.detail("whole_heap_library", library_of(Heap::whole));
  report.detail("rounds", sizes.rounds);
  report.detail("smoke", sizes.smoke);
  for (const Part& part : parts)
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), part.name) != wanted.end()) {
      const double begin = now_s();
      part.measure(sizes, report, peer);
      std::printf("%s: %.0f s\n", part.name, now_s() - begin);
      std::fflush(stdout);
    }
  report_peer(peer, report);
  report.detail("load_average_at_end", load_average());
  report.print();
  if (load_average() > 1.5 * static_cast<double>(processors()))
    std::printf(
        "other work (load average %.1f on %ld processors): prefer the figures by CPU time in the JSON\n",
        load_average(), processors());
  if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << report.document().dump(2) << "\n";
    if (!file.flush()) die("cannot write " + json_file);
  }
  return 0;
}
