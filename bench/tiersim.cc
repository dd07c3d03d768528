// SPDX-License-Identifier: Apache-2.0
// How good is the default policy on a trace? Its hits against Belady's, ARC's and LRU's, and those of the
// block store's eviction order; the time in memory with look-ahead; and what a plan costs. Without the conversation trace a made-up one of the same shape stands
// in, and the output says so.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tiering/sim/generators.h"
#include "tiering/sim/numbers.h"

using namespace terrace;
using namespace terrace::tiering;

namespace {

// $TERRACE_TRACE, else beside the source tree, else nothing.
std::string usual_trace() {
  if (const char* named = std::getenv("TERRACE_TRACE"); named != nullptr) return named;
  const std::string beside = TERRACE_SOURCE_FOLDER "/../shared/data/mooncake_conversation_trace.jsonl";
  return ::access(beside.c_str(), R_OK) == 0 ? beside : "";
}

nlohmann::json as_json(const TiersimNumbers& numbers) {
  nlohmann::json result;
  const auto put = [&result](const std::string& prefix, const TiersimNumbers::Hits& hits) {
    result[prefix + "_1pct"] = hits.at_1pct;
    result[prefix + "_5pct"] = hits.at_5pct;
    result[prefix + "_10pct"] = hits.at_10pct;
  };
  put("tiersim_hits_over_belady", numbers.policy);
  put("tiersim_prefix_order_hits_over_belady", numbers.prefix_order);
  put("tiersim_arc_hits_over_belady", numbers.arc);
  put("kv_hit_rate_over_arc", {.at_1pct = numbers.prefix_order.at_1pct / numbers.arc.at_1pct,
                               .at_5pct = numbers.prefix_order.at_5pct / numbers.arc.at_5pct,
                               .at_10pct = numbers.prefix_order.at_10pct / numbers.arc.at_10pct});
  put("kv_prefix_hit_rate_over_arc", numbers.prefixes_over_arc);
  put("tiersim_lru_hits_over_belady", numbers.lru);
  result["tiersim_stall_over_belady_5pct"] = numbers.stall_over_belady_5pct;
  return result;
}

// Of the trace, and of all made-up ones.
Result<RivalNumbers> against_rivals(const Trace& trace, double scale) {
  TERRACE_ASSIGN_OR_RETURN(RivalNumbers worst, measure_rivals(trace, usual_machine()));
  for (const GeneratorEntry& entry : generators()) {
    TERRACE_ASSIGN_OR_RETURN(const Trace made, generate_trace(entry.name, scale));
    TERRACE_ASSIGN_OR_RETURN(const RivalNumbers numbers, measure_rivals(made, usual_machine()));
    std::printf("%-32s %8.3f of the best rival's hits, %8.3f of LRU's copies\n", entry.name.data(),
                numbers.over_best, numbers.copied_over_lru);
    worst = worse_of(worst, numbers);
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How good is the default policy on a trace?");
  bool smoke = false;
  std::string json_path, trace_path = usual_trace();
  app.add_flag("--smoke", smoke, "Small, to see that it works");
  app.add_option("--json", json_path, "Write the figures there");
  app.add_option("--trace", trace_path,
                 "A mooncake trace (default: $TERRACE_TRACE, else the one beside the sources)");
  CLI11_PARSE(app, argc, argv);
  const bool made_up = smoke || trace_path.empty();
  const Result<Trace> trace = made_up ? generate_trace("conversation", smoke ? 0.05 : 4)
                                      : read_trace(trace_path, TraceFormat::mooncake);
  if (!trace.ok()) {
    std::fprintf(stderr, "bench_tiersim: %s\n", trace.error().to_string().c_str());
    return 1;
  }
  const Result<TiersimNumbers> numbers = measure_trace(*trace, usual_machine());
  if (!numbers.ok()) {
    std::fprintf(stderr, "bench_tiersim: %s\n", numbers.error().to_string().c_str());
    return 1;
  }
  const Result<RivalNumbers> rivals = against_rivals(*trace, smoke ? 0.02 : 0.1);
  if (!rivals.ok()) {
    std::fprintf(stderr, "bench_tiersim: %s\n", rivals.error().to_string().c_str());
    return 1;
  }
  nlohmann::json result = as_json(*numbers);
  result["tiersim_over_best_rival"] = rivals->over_best;
  result["tiersim_copied_over_lru"] = rivals->copied_over_lru;
  result["policy_plan_ns_per_granule"] = plan_ns_per_granule(smoke ? size_t{1} << 12 : size_t{1} << 20);
  result["trace"] = made_up ? "made up" : trace_path;
  std::printf("%s trace, %zu requests, %zu uses of %u objects\n", made_up ? "made-up" : trace_path.c_str(),
              trace->requests.size(), trace->uses.size(), trace->objects);
  std::printf("%-32s %8s %8s %8s\n", "hits over Belady's, DDR", "1 %", "5 %", "10 %");
  const auto line = [](const char* name, const TiersimNumbers::Hits& hits) {
    std::printf("%-32s %8.3f %8.3f %8.3f\n", name, hits.at_1pct, hits.at_5pct, hits.at_10pct);
  };
  line(policies().front().name, numbers->policy);
  line("prefix-order", numbers->prefix_order);
  line("arc", numbers->arc);
  line("lru", numbers->lru);
  line("prefixes over arc's", numbers->prefixes_over_arc);
  std::printf("time in memory over Belady's, 5 %%, %u requests ahead: %.3f\n", usual_machine().look_ahead,
              numbers->stall_over_belady_5pct);
  std::printf("worst of all traces: %.3f of the best rival's hits, %.3f of LRU's copies\n", rivals->over_best,
              rivals->copied_over_lru);
  std::printf("a plan costs %.1f ns a granule\n", result["policy_plan_ns_per_granule"].get<double>());
  if (!json_path.empty()) std::ofstream(json_path) << result.dump(1) << "\n";
  return 0;
}
