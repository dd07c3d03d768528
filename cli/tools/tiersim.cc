// SPDX-License-Identifier: Apache-2.0
// `terrace tiersim`: what would a policy do with this trace? Runs the engine's own policies, and published
// caches to compare with, in virtual time. Needs no daemon and touches no device.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/terminal/output.h"
#include "cli/terminal/verb.h"
#include "core/base/units.h"
#include "tiering/sim/comparison.h"
#include "tiering/sim/generators.h"
#include "tiering/sim/numbers.h"

namespace terrace::cli {
namespace {

using tiering::Outcome;
using tiering::Trace;

struct TiersimOptions : tiering::ComparisonOptions {
  std::string trace;
  std::string made;
  std::string format = "mooncake";
  double scale = 1;
};

Error tiersim_usage(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "tiersim", .detail = std::move(detail)};
}

// A line on stderr that is drawn over and over, only on a terminal.
class Line {
 public:
  explicit Line(const Context& context) : enabled_(!context.json && isatty(STDERR_FILENO) == 1) {}
  ~Line() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  void update(const std::string& what, uint64_t done, uint64_t total) {
    const uint64_t percent = done * 100 / std::max<uint64_t>(total, 1);
    if (!enabled_ || (percent == percent_ && what == what_)) return;
    percent_ = percent;
    what_ = what;
    std::fprintf(stderr, "\r\033[K%s  %u%%", what.c_str(), static_cast<unsigned>(percent));
    std::fflush(stderr);
    drawn_ = true;
  }

 private:
  bool enabled_;
  bool drawn_ = false;
  uint64_t percent_ = 101;
  std::string what_;
};

Result<Trace> load(const TiersimOptions& options) {
  if (options.trace.empty() == options.made.empty())
    return tiersim_usage(options.trace.empty() ? "say --trace FILE, or --made NAME for a made-up trace"
                                               : "--trace and --made exclude each other; leave one out");
  if (!options.made.empty()) return tiering::generate_trace(options.made, options.scale);
  return tiering::read_trace(options.trace, options.format == "accesses" ? tiering::TraceFormat::accesses
                                                                         : tiering::TraceFormat::mooncake);
}

std::string seconds_text(double value) {
  return value >= 100 ? fixed(value, 0) : value >= 1 ? fixed(value, 2) : fixed(value, 4);
}

void print_comparison(const Trace& trace, const tiering::Comparison& comparison) {
  const tiering::Machine& machine = comparison.machine;
  print_text(
      printable(trace.name) + ": " + count_text(trace.requests.size(), "request") + ", " +
      count_text(trace.uses.size(), "use") + " of " + count_text(trace.objects, "object") + " of " +
      format_size(machine.granule_bytes) + ", " + count_text(trace.re_references(), "re-reference") +
      (machine.look_ahead > 0 ? ", " + count_text(machine.look_ahead, "request") + " announced ahead" : "") +
      "\n\n");
  std::vector<std::vector<std::string>> cells;
  for (const tiering::ComparisonRow& row : comparison.rows) {
    const Outcome& outcome = row.outcome;
    const uint64_t uses = std::max<uint64_t>(outcome.uses, 1);
    cells.push_back({outcome.policy, row.ddr_fraction,
                     fixed(static_cast<double>(outcome.hits) / static_cast<double>(uses), 3),
                     fixed(outcome.ddr_hit_share(), 3), fixed(row.hits_over_belady, 3),
                     std::to_string(outcome.promotions), std::to_string(outcome.demotions),
                     format_size(outcome.bytes_copied), seconds_text(outcome.stall_s),
                     fixed(row.memory_over_belady, 3)});
  }
  print_table({"POLICY", "DDR", "HITS", "RE-REF HITS", "OF BELADY", "PROMOTED", "DEMOTED", "COPIED", "STALL S",
               "TIME/BELADY"},
              cells);
}

// As parse_policies(), which does not know what may have been meant.
Status read_policies(TiersimOptions& options, const std::string& text) {
  const std::vector<std::string_view> known = tiering::simulated_names();
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const bool there = std::find(known.begin(), known.end(), part) != known.end();
    const std::string near = there ? "" : did_you_mean(part, {known.begin(), known.end()});
    if (!near.empty()) return tiersim_usage("no policy '" + part + "'; did you mean '" + near + "'?");
  }
  return tiering::parse_policies(options, text);
}

Status tiersim(Context& context, const TiersimOptions& options) {
  TERRACE_RETURN_IF_ERROR(tiering::machine_of(options));
  TERRACE_ASSIGN_OR_RETURN(const Trace trace, load(options));
  const auto compare = [&] {
    Line line(context);
    return tiering::compare(trace, options, [&line](const std::string& what, uint64_t done, uint64_t total) {
      line.update("tiersim  " + what, done, total);
    });
  };
  TERRACE_ASSIGN_OR_RETURN(const tiering::Comparison comparison, compare());
  if (context.json) {
    print_json(tiering::comparison_json(trace, comparison));
  } else {
    print_comparison(trace, comparison);
  }
  return {};
}

void add_machine_options(Command verb, TiersimOptions& options) {
  add_size_option(verb, "--granule", options.granule_bytes, "Bytes of an object of the trace (default 2M)");
  add_duration_option(verb, "--ddr-latency", options.ddr_latency_ns,
                      "Of the first byte from DDR (default 100ns)");
  add_duration_option(verb, "--cxl-latency", options.cxl_latency_ns,
                      "Of the first byte from CXL (default 250ns)");
  add_size_option(verb, "--ddr-bandwidth", options.ddr_bandwidth, "A second, of one reader (default 80 GB)");
  add_size_option(verb, "--cxl-bandwidth", options.cxl_bandwidth, "A second, of one reader (default 20 GB)");
  add_size_option(verb, "--copy-bandwidth", options.copy_bandwidth, "A second, of one move (default 8 GB)");
  add_duration_option(verb, "--copy-overhead", options.copy_overhead_ns,
                      "Of a move, beside its copy (default 20us)");
  add_size_option(verb, "--copy-budget", options.copy_budget,
                  "Most bytes that may be moved a second (default: as fast as one copy after the other goes)");
  verb.add_option("--look-ahead", options.look_ahead,
                  "Requests in the queue whose objects are known ahead of their turn (default 0: history only)")
      .in_range(0u, tiering::look_ahead_max)
      .type_name("N");
  add_duration_option(verb, "--half-life", options.policy.half_life_ns, "Of heat (default 10s)");
  add_duration_option(verb, "--horizon", options.policy.horizon_ns, "Over which a move must pay (default 30s)");
}

}  // namespace

void add_tiersim_verb(Command app, Context& context) {
  Command verb = app.add_subcommand(
      "tiersim", "What migration policies would do with a trace, against known ones: needs no daemon");
  const auto options = std::make_shared<TiersimOptions>();
  verb.add_option("--trace", options->trace, "The trace").type_name("FILE");
  verb.add_option(
          "--format", options->format,
          "mooncake: JSON lines with timestamp and hash_ids (default); accesses: lines 'time_us object [r|w]'")
      .one_of({"mooncake", "accesses"});
  std::string made_help = "A made-up trace instead of a file:";
  std::vector<std::string> made_names;
  for (const tiering::GeneratorEntry& entry : tiering::generators()) {
    made_names.emplace_back(entry.name);
    made_help += (made_names.size() > 1 ? ", " : " ") + made_names.back();
  }
  verb.add_option("--made", options->made, made_help).one_of(made_names).type_name("NAME");
  verb.add_option("--scale", options->scale, "Size of a made-up trace (default 1: about 200000 uses)")
      .in_range(0.001, 100.0)
      .type_name("FACTOR");
  verb.add_parsed_option(
          "--ddr-fraction",
          [options](const std::string& text) { return tiering::parse_ddr_fractions(*options, text); },
          "Shares of all objects that fit in DDR (default 0.01,0.05,0.1)")
      .type_name("LIST");
  verb.add_parsed_option(
          "--policy", [options](const std::string& text) { return read_policies(*options, text); },
          "Of " + tiering::simulated_names_text() + " (default: the first and all caches)")
      .type_name("LIST");
  add_machine_options(verb, *options);
  on_verb(verb, context, [&context, options] { return tiersim(context, *options); });
}

}  // namespace terrace::cli
