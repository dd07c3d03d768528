// SPDX-License-Identifier: Apache-2.0
#include "cli/tier/tier_describe.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/show/describe.h"
#include "cli/terminal/output.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

using layout::TierRange;
using layout::TierState;

// The hit share, or nothing: a range that nobody touches has none.
bool knows_hits(const TierRange& numbers) {
  return numbers.sweeps != 0 && numbers.ddr_hit_permille <= 1000;
}

uint64_t moved_granules(const TierRange& numbers) {
  return numbers.promotions + numbers.demotions;
}

std::string on_average(uint64_t ns, uint64_t count) {
  return count == 0 ? "-" : format_duration(ns / count);
}

std::string with_reason(const TierRangeView& range, const std::string& text) {
  return range.reason.empty() ? text : text + " (" + range.reason + ")";
}

std::string skipped_text(const TierRange& numbers) {
  return std::to_string(numbers.skipped_busy) + " held by I/O or a guard, " +
         std::to_string(numbers.skipped_pinned) + " with pinned pages, " +
         std::to_string(numbers.skipped_unproven) + " without proof that none are, " +
         std::to_string(numbers.skipped_vma) + " at the bound of mappings";
}

// What is wrong with any range, one paragraph each.
std::string troubles(const std::vector<TierPageView>& pages) {
  std::string text;
  for (const TierPageView& page : pages) {
    for (const TierRangeView& range : page.ranges) {
      const StateWords words = explain_state(range);
      if (words.fix.empty()) continue;
      text += "\n" + page.title() + " " + range.name + ": " + words.text + "\n  fix: " + words.fix + "\n";
    }
  }
  return text;
}

std::vector<std::string> leading_cells(const TierPageView& page, const TierRangeView& range) {
  const TierRange& numbers = range.numbers;
  return {std::to_string(page.pid),
          page.program,
          or_dash(range.name),
          tier_state_name(range.state),
          or_dash(range.policy),
          format_size(numbers.bytes),
          format_size(numbers.ddr_bytes),
          format_size(numbers.ddr_bytes_max),
          format_size(numbers.cxl_bytes),
          describe_hits(range)};
}

const std::vector<std::string> leading_titles = {"PID",  "PROGRAM", "RANGE",   "STATE", "POLICY",
                                                 "SIZE", "DDR",     "DDR MAX", "CXL",   "HITS"};

std::string table_of(const std::vector<std::string>& more_titles, std::vector<std::vector<std::string>> rows) {
  std::vector<std::string> titles = leading_titles;
  titles.insert(titles.end(), more_titles.begin(), more_titles.end());
  return format_table(titles, rows);
}

std::string range_block(const TierRangeView& range) {
  const TierRange& n = range.numbers;
  const uint64_t moved = moved_granules(n);
  char address[32];
  std::snprintf(address, sizeof address, "0x%llx", static_cast<unsigned long long>(n.base));
  const StateWords words = explain_state(range);
  std::vector<std::pair<std::string, std::string>> fields = {
      {"state", std::string(tier_state_name(range.state)) + ": " + words.text}};
  if (!words.fix.empty()) fields.emplace_back("fix", words.fix);
  const uint64_t there = n.ddr_bytes + n.cxl_bytes;
  fields.insert(
      fields.end(),
      {{"memory",
        format_size(n.bytes) + " at " + address + ", granules of " + format_size(range.granule_bytes())},
       {"policy", or_dash(range.policy)},
       {"residency", format_size(n.ddr_bytes) + " in DDR, " + format_size(n.cxl_bytes) + " in CXL, " +
                         format_size(n.bytes > there ? n.bytes - there : 0) + " without memory; " +
                         format_size(n.busy_bytes) + " busy"},
       {"budget", format_size(n.ddr_bytes_max) + " of DDR; copies: " + describe_rate(n.copy_bytes_per_s_max)},
       {"moves", count_text(n.promotions, "promotion") + " (" + format_size(n.promoted_bytes) + "), " +
                     count_text(n.demotions, "demotion") + " (" + format_size(n.demoted_bytes) + "); " +
                     std::to_string(n.aborted) + " undone"},
       {"skipped", skipped_text(n)},
       {"stalled", format_duration(n.stalled_ns) + " in all, " + on_average(n.stalled_ns, moved) +
                       " a granule moved, of which " + on_average(n.copy_ns, moved) + " copying"},
       {"hits", knows_hits(n) ? "about " + describe_hits(range) + " of accesses are served by DDR"
                              : std::string("not known: nothing was sampled yet")},
       {"copying", std::to_string(n.copy_mib_per_s) + " MiB/s lately"},
       {"sampler", count_text(n.sweeps, "sweep") + ", " + on_average(n.sampler_ns, n.sweeps) + " each"},
       {"look-ahead", count_text(n.announced, "granule") + " announced, " + std::to_string(n.prefetched) +
                          " in DDR before their use"}});
  return format_block(fields);
}

}  // namespace

const char* tier_state_name(TierState state) {
  switch (state) {
    case TierState::absent: return "absent";
    case TierState::running: return "running";
    case TierState::paused: return "paused";
    case TierState::no_uffd: return "no_uffd";
    case TierState::stopped: return "stopped";
    case TierState::forked: return "forked";
  }
  return "absent";
}

StateWords explain_state(const TierRangeView& range) {
  switch (range.state) {
    case TierState::absent: return {"there is no such range", ""};
    case TierState::running: return {"granules move as the policy decides", ""};
    case TierState::paused: return {"nothing moves until `terrace tier resume`, as was asked for", ""};
    case TierState::no_uffd:
      return {with_reason(range,
                          "the memory works, and nothing moves: the process has no userfaultfd that sees "
                          "faults inside system calls"),
              "start the program while a terraced that runs as root gives it one (clients.userfaultfd = "
              "\"all\"), or "
              "as root; `terrace doctor` says what lacks"};
    case TierState::stopped:
      return {
          with_reason(range,
                      "the memory works, and nothing moves any more: the engine met an error that "
                      "does not go away"),
          "the program has to start again for its granules to move; report what stands in parentheses where it "
          "names no lease and no device"};
    case TierState::forked:
      return {
          with_reason(range,
                      "private to this process since a fork without exec: bytes stay where they are until they "
                      "are written, then they are in ordinary memory; nothing moves"),
          ""};
  }
  return {};
}

std::string describe_rate(uint64_t bytes_per_s) {
  return bytes_per_s == 0 ? "no bound" : "at most " + format_size(bytes_per_s) + "/s";
}

std::string describe_request(const TierRequest& request) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (!request.policy.empty()) add("policy " + request.policy);
  if (request.ddr_bytes_max.has_value()) add(format_size(*request.ddr_bytes_max) + " of DDR");
  if (request.copy_bytes_per_s_max.has_value()) add("copies: " + describe_rate(*request.copy_bytes_per_s_max));
  if (request.paused.has_value()) add(*request.paused ? "paused" : "not paused");
  return text;
}

std::string describe_hits(const TierRangeView& range) {
  if (!knows_hits(range.numbers)) return "-";
  return fixed(static_cast<double>(range.numbers.ddr_hit_permille) / 10, 1) + "%";
}

nlohmann::json to_json(const TierRangeView& range) {
  const TierRange& n = range.numbers;
  const StateWords words = explain_state(range);
  const auto mean = [](uint64_t ns, uint64_t count) -> nlohmann::json {
    return count == 0 ? nlohmann::json(nullptr) : nlohmann::json(ns / count);
  };
  nlohmann::json json = {
      {"name", range.name},
      {"state", tier_state_name(range.state)},
      {"meaning", words.text},
      {"reason", range.reason.empty() ? nlohmann::json(nullptr) : nlohmann::json(range.reason)},
      {"fix", words.fix.empty() ? nlohmann::json(nullptr) : nlohmann::json(words.fix)},
      {"policy", range.policy},
      {"address", n.base},
      {"bytes", n.bytes},
      {"granule_bytes", range.granule_bytes()},
      {"ddr_bytes", n.ddr_bytes},
      {"cxl_bytes", n.cxl_bytes},
      {"busy_bytes", n.busy_bytes},
      {"ddr_bytes_max", n.ddr_bytes_max}};
  json.update({{"copy_bytes_per_s_max",
                n.copy_bytes_per_s_max == 0 ? nlohmann::json(nullptr) : nlohmann::json(n.copy_bytes_per_s_max)},
               {"copy_bytes_per_s", uint64_t{n.copy_mib_per_s} * mib},
               {"promotions", n.promotions},
               {"demotions", n.demotions},
               {"promoted_bytes", n.promoted_bytes},
               {"demoted_bytes", n.demoted_bytes},
               {"aborted", n.aborted},
               {"skipped_busy", n.skipped_busy},
               {"skipped_mappings", n.skipped_vma},
               {"skipped_pinned", n.skipped_pinned},
               {"skipped_unproven", n.skipped_unproven},
               {"stalled_ns", n.stalled_ns},
               {"stalled_ns_mean", mean(n.stalled_ns, moved_granules(n))},
               {"copy_ns", n.copy_ns},
               {"sweeps", n.sweeps},
               {"sampler_ns", n.sampler_ns},
               {"announced", n.announced},
               {"prefetched", n.prefetched},
               {"ddr_hit_share",
                knows_hits(n) ? nlohmann::json(n.ddr_hit_permille / 1000.0) : nlohmann::json(nullptr)}});
  return json;
}

nlohmann::json to_json(const TierPageView& page) {
  nlohmann::json ranges = nlohmann::json::array();
  for (const TierRangeView& range : page.ranges) ranges.push_back(to_json(range));
  return {{"pid", page.pid}, {"uid", page.uid}, {"program", page.program}, {"ranges", ranges}};
}

std::string tier_table(const std::vector<TierPageView>& pages) {
  std::vector<std::vector<std::string>> rows;
  for (const TierPageView& page : pages) {
    for (const TierRangeView& range : page.ranges) {
      const TierRange& n = range.numbers;
      std::vector<std::string> row = leading_cells(page, range);
      row.insert(row.end(), {std::to_string(n.promotions), std::to_string(n.demotions),
                             format_duration(n.stalled_ns), std::to_string(n.copy_mib_per_s) + " MiB/s"});
      rows.push_back(std::move(row));
    }
  }
  return table_of({"PROMOTED", "DEMOTED", "STALLED", "COPYING"}, std::move(rows)) + troubles(pages);
}

std::string tier_block(const TierPageView& page) {
  std::string text = page.title() + ", uid " + std::to_string(page.uid) + "\n";
  if (page.ranges.empty()) text += "no range now\n";
  for (const TierRangeView& range : page.ranges) text += or_dash(range.name) + "\n" + range_block(range);
  return text;
}

std::string TierRates::table(const std::vector<TierPageView>& pages, uint64_t now_ns) {
  std::map<std::pair<int, uint32_t>, Before> now;
  std::vector<std::vector<std::string>> rows;
  for (const TierPageView& page : pages) {
    for (const TierRangeView& range : page.ranges) {
      const TierRange& n = range.numbers;
      const std::pair<int, uint32_t> key{page.pid, range.index};
      const Before today{
          page.start_ticks, n.base, n.promotions, n.demotions, n.promoted_bytes + n.demoted_bytes,
          n.stalled_ns,     now_ns};
      std::vector<std::string> row = leading_cells(page, range);
      const auto at = before_.find(key);
      const bool known = at != before_.end() && at->second.start_ticks == today.start_ticks &&
                         at->second.base == today.base && at->second.at_ns < now_ns;
      if (known) {
        const Before& then = at->second;
        const double seconds = static_cast<double>(now_ns - then.at_ns) / 1e9;
        const auto rate = [seconds](uint64_t new_value, uint64_t old_value) {
          const double value = static_cast<double>(new_value > old_value ? new_value - old_value : 0) / seconds;
          return std::min(value, 9e18);  // what a process tells may be anything
        };
        row.insert(row.end(), {fixed(rate(today.promotions, then.promotions), 1),
                               fixed(rate(today.demotions, then.demotions), 1),
                               format_duration(static_cast<uint64_t>(rate(today.stalled_ns, then.stalled_ns))),
                               format_size(static_cast<uint64_t>(rate(today.bytes, then.bytes)))});
      } else {
        row.insert(row.end(), {"-", "-", "-", "-"});
      }
      rows.push_back(std::move(row));
      now.emplace(key, today);
    }
  }
  before_ = std::move(now);
  return table_of({"UP/S", "DOWN/S", "STALLED/S", "COPIED/S"}, std::move(rows)) + troubles(pages);
}

}  // namespace terrace::cli
