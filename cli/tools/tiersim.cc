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
#include "tiering/sim/generators.h"
#include "tiering/sim/numbers.h"
#include "tiering/sim/simulate.h"

namespace terrace::cli {
namespace {

using tiering::Machine;
using tiering::Outcome;
using tiering::Trace;

struct TiersimOptions {
  std::string trace;
  std::string made;
  std::string format = "mooncake";
  double scale = 1;
  // As said, and what it means.
  std::vector<std::pair<std::string, double>> ddr_fractions = {{"0.01", 0.01}, {"0.05", 0.05}, {"0.1", 0.1}};
  std::vector<std::string> policies;
  uint64_t granule_bytes = tiering::usual_machine().granule_bytes;
  uint64_t ddr_latency_ns, cxl_latency_ns, copy_overhead_ns;
  uint64_t ddr_bandwidth, cxl_bandwidth, copy_bandwidth;
  uint64_t copy_budget = 0;
  uint32_t look_ahead = 0;
  tiering::PolicyOptions policy;
};

Error tiersim_usage(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = "tiersim", .detail = std::move(detail)};
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::string names_text() {
  std::string text;
  for (const std::string_view name : tiering::simulated_names())
    text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

Status parse_fractions(TiersimOptions& options, const std::string& text) {
  options.ddr_fractions.clear();
  for (const std::string& part : parts_of(text)) {
    char* end = nullptr;
    const double value = std::strtod(part.c_str(), &end);
    if (part.empty() || *end != '\0' || !(value > 0 && value <= 1))
      return tiersim_usage("'" + part + "' is no share above 0 and up to 1, such as 0.05");
    options.ddr_fractions.emplace_back(part, value);
  }
  if (options.ddr_fractions.empty()) return tiersim_usage("names no share, such as 0.05");
  return {};
}

Status parse_policies(TiersimOptions& options, const std::string& text) {
  options.policies.clear();
  const std::vector<std::string_view> known = tiering::simulated_names();
  for (const std::string& part : parts_of(text)) {
    if (std::find(known.begin(), known.end(), part) == known.end()) {
      const std::string near = did_you_mean(part, {known.begin(), known.end()});
      return tiersim_usage("no policy '" + part + "'; " +
                           (near.empty() ? "there are " + names_text() : "did you mean '" + near + "'?"));
    }
    options.policies.push_back(part);
  }
  if (options.policies.empty()) return tiersim_usage("names no policy; there are " + names_text());
  return {};
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

struct Row {
  std::string ddr_fraction;
  Outcome outcome;
  double hits_over_belady = 0;
  double memory_over_belady = 0;
};

double ratio(double value, double of) {
  return of > 0 ? value / of : 1;
}

Result<Trace> load(const TiersimOptions& options) {
  if (options.trace.empty() == options.made.empty())
    return tiersim_usage(options.trace.empty() ? "say --trace FILE, or --made NAME for a made-up trace"
                                               : "--trace and --made exclude each other; leave one out");
  if (!options.made.empty()) return tiering::generate_trace(options.made, options.scale);
  return tiering::read_trace(options.trace, options.format == "accesses" ? tiering::TraceFormat::accesses
                                                                         : tiering::TraceFormat::mooncake);
}

Result<Machine> machine_of(const TiersimOptions& options) {
  if (options.granule_bytes == 0 || options.granule_bytes > (uint64_t{1} << 40))
    return tiersim_usage("--granule lies between 1 byte and 1 TiB");
  for (const uint64_t bandwidth : {options.ddr_bandwidth, options.cxl_bandwidth, options.copy_bandwidth})
    if (bandwidth < mib) return tiersim_usage("bandwidths are at least 1M (a second)");
  Machine machine{.granule_bytes = options.granule_bytes,
                  .costs = {},
                  .copy_budget_bytes_per_s = options.copy_budget,
                  .look_ahead = options.look_ahead};
  machine.costs.ddr_latency_ns = static_cast<float>(options.ddr_latency_ns);
  machine.costs.cxl_latency_ns = static_cast<float>(options.cxl_latency_ns);
  machine.costs.move_overhead_ns = static_cast<float>(options.copy_overhead_ns);
  machine.costs.ddr_bandwidth_bytes_per_s = static_cast<float>(options.ddr_bandwidth);
  machine.costs.cxl_bandwidth_bytes_per_s = static_cast<float>(options.cxl_bandwidth);
  machine.costs.copy_bytes_per_s = static_cast<float>(options.copy_bandwidth);
  return machine;
}

Result<std::vector<Row>> run_all(Context& context, const TiersimOptions& options, const Trace& trace,
                                 const Machine& machine) {
  std::vector<Row> rows;
  Line line(context);
  for (const auto& [said, fraction] : options.ddr_fractions) {
    const auto room = std::max<uint64_t>(static_cast<uint64_t>(trace.objects * fraction), 1);
    TERRACE_ASSIGN_OR_RETURN(const Outcome best, tiering::simulate(trace, "belady", room, machine));
    for (const std::string& policy : options.policies) {
      const std::string what = "tiersim  " + policy + " at " + said;
      TERRACE_ASSIGN_OR_RETURN(
          Outcome outcome, tiering::simulate(trace, policy, room, machine, options.policy, [&](uint64_t done) {
            line.update(what, done, trace.requests.size());
          }));
      Row row{.ddr_fraction = said, .outcome = std::move(outcome)};
      row.hits_over_belady = ratio(static_cast<double>(row.outcome.hits), static_cast<double>(best.hits));
      row.memory_over_belady = ratio(row.outcome.memory_s, best.memory_s);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::string seconds_text(double value) {
  return value >= 100 ? fixed(value, 0) : value >= 1 ? fixed(value, 2) : fixed(value, 4);
}

void print_rows(const Trace& trace, const Machine& machine, const std::vector<Row>& rows) {
  print_text(
      printable(trace.name) + ": " + count_text(trace.requests.size(), "request") + ", " +
      count_text(trace.uses.size(), "use") + " of " + count_text(trace.objects, "object") + " of " +
      format_size(machine.granule_bytes) + ", " + count_text(trace.re_references(), "re-reference") +
      (machine.look_ahead > 0 ? ", " + count_text(machine.look_ahead, "request") + " announced ahead" : "") +
      "\n\n");
  std::vector<std::vector<std::string>> cells;
  for (const Row& row : rows) {
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

nlohmann::json rows_json(const Trace& trace, const Machine& machine, const std::vector<Row>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows) {
    const Outcome& outcome = row.outcome;
    list.push_back({{"policy", outcome.policy},
                    {"ddr_fraction", std::strtod(row.ddr_fraction.c_str(), nullptr)},
                    {"ddr_granules", outcome.ddr_granules},
                    {"hits", outcome.hits},
                    {"re_reference_hit_share", outcome.ddr_hit_share()},
                    {"hits_over_belady", row.hits_over_belady},
                    {"promotions", outcome.promotions},
                    {"demotions", outcome.demotions},
                    {"bytes_copied", outcome.bytes_copied},
                    {"new_in_cxl", outcome.new_in_cxl},
                    {"stall_s", outcome.stall_s},
                    {"memory_s", outcome.memory_s},
                    {"memory_time_over_belady", row.memory_over_belady}});
  }
  return {{"trace", trace.name},
          {"requests", trace.requests.size()},
          {"uses", trace.uses.size()},
          {"objects", trace.objects},
          {"re_references", trace.re_references()},
          {"granule_bytes", machine.granule_bytes},
          {"look_ahead_requests", machine.look_ahead},
          {"results", std::move(list)}};
}

Status tiersim(Context& context, const TiersimOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const Machine machine, machine_of(options));
  TERRACE_ASSIGN_OR_RETURN(const Trace trace, load(options));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Row> rows, run_all(context, options, trace, machine));
  if (context.json) {
    print_json(rows_json(trace, machine, rows));
  } else {
    print_rows(trace, machine, rows);
  }
  return {};
}

void add_machine_options(Command verb, TiersimOptions& options) {
  const tiering::TierCosts usual;
  options.ddr_latency_ns = static_cast<uint64_t>(usual.ddr_latency_ns);
  options.cxl_latency_ns = static_cast<uint64_t>(usual.cxl_latency_ns);
  options.copy_overhead_ns = static_cast<uint64_t>(usual.move_overhead_ns);
  options.ddr_bandwidth = static_cast<uint64_t>(usual.ddr_bandwidth_bytes_per_s);
  options.cxl_bandwidth = static_cast<uint64_t>(usual.cxl_bandwidth_bytes_per_s);
  options.copy_bandwidth = static_cast<uint64_t>(usual.copy_bytes_per_s);
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
      .in_range(0u, 100'000u)
      .type_name("N");
  add_duration_option(verb, "--half-life", options.policy.half_life_ns, "Of heat (default 10s)");
  add_duration_option(verb, "--horizon", options.policy.horizon_ns, "Over which a move must pay (default 30s)");
}

}  // namespace

void add_tiersim_verb(Command app, Context& context) {
  Command verb = app.add_subcommand(
      "tiersim", "What migration policies would do with a trace, against known ones: needs no daemon");
  const auto options = std::make_shared<TiersimOptions>();
  options->policies = {"benefit-density", "lru", "arc", "s3-fifo", "belady"};
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
          "--ddr-fraction", [options](const std::string& text) { return parse_fractions(*options, text); },
          "Shares of all objects that fit in DDR (default 0.01,0.05,0.1)")
      .type_name("LIST");
  verb.add_parsed_option(
          "--policy", [options](const std::string& text) { return parse_policies(*options, text); },
          "Of " + names_text() + " (default: the first and the last four)")
      .type_name("LIST");
  add_machine_options(verb, *options);
  on_verb(verb, context, [&context, options] { return tiersim(context, *options); });
}

}  // namespace terrace::cli
