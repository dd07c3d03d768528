// SPDX-License-Identifier: Apache-2.0
// `terrace tier`: how memory migrates in the processes of this machine, and what they are asked to do about it.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/show/reported_runs.h"
#include "cli/terminal/local_time.h"
#include "cli/terminal/output_file.h"
#include "cli/terminal/output_style.h"
#include "cli/tier/tier_describe.h"
#include "cli/tier/tier_map.h"
#include "cli/tier/tier_verbs.h"
#include "core/base/clock.h"

namespace terrace::cli {
namespace {

struct StatusArguments {
  std::string process;
  std::string watch;  // empty: once
};

struct MapArguments {
  std::string process, range, svg;
  uint32_t width = 0;
};

// What was found wrong goes to people as it is found, beside the answer.
void say_problems(const Context& context, const TierScan& scan) {
  if (context.json) return;
  for (const std::string& problem : scan.problems) std::fprintf(stderr, "terrace: %s\n", problem.c_str());
}

// --- status

// Of runs that show neither a page nor a run's file here. A named process is one of this machine.
std::vector<ReportedRun> runs_elsewhere(const Context& context, const StatusArguments& arguments) {
  if (!arguments.process.empty()) return {};
  return runs_not_seen_here(context, {layout::tier_page_directory, run_directory_prefix});
}

nlohmann::json scan_json(const std::vector<TierPageView>& pages, const TierScan& scan,
                         const std::vector<ReportedRun>& elsewhere) {
  nlohmann::json processes = nlohmann::json::array();
  for (const TierPageView& page : pages) processes.push_back(to_json(page));
  return {{"processes", processes},
          {"reported_runs", to_json(elsewhere)},
          {"problems", scan.problems},
          {"swept", scan.swept}};
}

std::string both_tables(std::string here, const std::vector<ReportedRun>& elsewhere) {
  const std::string reported = reported_table(elsewhere);
  return here + (here.empty() || reported.empty() ? "" : "\n") + reported;
}

std::string no_process_text() {
  return std::string("no process ") + (::geteuid() == 0 ? "" : "of this user ") +
         "migrates memory now; one does that uses a tiered range, or runs under `terrace run`\n";
}

Status show_tier_status(const Context& context, const StatusArguments& arguments) {
  const TierScan scan = scan_tier_pages(TierPlaces::own());
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TierPageView> pages, choose(scan, arguments.process));
  const std::vector<ReportedRun> elsewhere = runs_elsewhere(context, arguments);
  if (context.json) {
    print_json(scan_json(pages, scan, elsewhere));
    return {};
  }
  say_problems(context, scan);
  if (pages.empty() && elsewhere.empty()) {
    print_text(no_process_text());
  } else if (arguments.process.empty()) {
    print_text(both_tables(pages.empty() ? std::string() : tier_table(pages), elsewhere));
  } else {
    std::string text;
    for (const TierPageView& page : pages) text += (text.empty() ? "" : "\n") + tier_block(page);
    print_text(text);
  }
  return {};
}

// Until it is ended, or what was asked for has. A process that is not there yet is no error on the second look:
// then it ended.
Status watch_status(const Context& context, const StatusArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const uint64_t interval_ns, parse_interval("--watch", arguments.watch));
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const SystemClock clock;
  TierRates rates;
  for (bool first = true;; first = false) {
    const TierScan scan = scan_tier_pages(TierPlaces::own());
    const auto pages = choose(scan, arguments.process);
    if (!pages.ok()) {
      if (first) return pages.error();
      if (!context.json) print_text(arguments.process + " ended\n");
      return {};
    }
    const std::vector<ReportedRun> elsewhere = runs_elsewhere(context, arguments);
    if (context.json) {
      print_text(
          scan_json(*pages, scan, elsewhere).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
          "\n");
    } else {
      std::string text =
          both_tables(pages->empty() ? std::string() : rates.table(*pages, clock.now_ns()), elsewhere);
      if (text.empty()) text = no_process_text();
      // On a terminal in the place of the last one; else one below the other.
      if (terminal)
        text = "\x1b[H\x1b[2J" + text + "\nevery " + format_duration(interval_ns) + "; end it with Ctrl-C\n";
      else if (!first)
        text = "\n" + text;
      print_text(text);
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(interval_ns));
  }
}

// --- map

// Columns left of a terminal's for the map itself.
uint32_t text_columns(const MapArguments& arguments) {
  constexpr uint32_t beside = 14, usual = 64, most = 160;
  if (arguments.width != 0) return arguments.width;
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col < beside + 16) return usual;
  return std::min<uint32_t>(window.ws_col - beside, most);
}

Status show_map(const Context& context, const MapArguments& arguments) {
  constexpr uint32_t text_rows = 32, svg_columns = 64, svg_rows = 64;
  const TierPlaces places = TierPlaces::own();
  const TierScan scan = scan_tier_pages(places);
  say_problems(context, scan);
  TERRACE_ASSIGN_OR_RETURN(const TierPageView page, choose_one(scan, arguments.process));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TierRangeView> ranges,
                           ranges_of(page, arguments.process, arguments.range));
  if (!arguments.svg.empty() && ranges.size() > 1) {
    std::string names;
    for (const TierRangeView& range : ranges) names += (names.empty() ? "" : ", ") + range.name;
    return tier_usage("--svg draws one range; say which by --range: " + names);
  }
  TERRACE_ASSIGN_OR_RETURN(const TierPageFile file, open_tier_page(places, page, TierAccess::read));
  nlohmann::json maps = nlohmann::json::array();
  std::string text;
  for (const TierRangeView& range : ranges) {
    const std::string title = page.title() + " " + range.name;
    if (!range.has_cells)
      return Error{
          .code = ErrorCode::corrupt, .where = tier_where, .detail = title + " shows no cells that make sense"};
    TERRACE_ASSIGN_OR_RETURN(const std::vector<uint8_t> cells, file.cells(range));
    if (!arguments.svg.empty()) {
      const uint32_t columns = arguments.width != 0 ? arguments.width : svg_columns;
      const TierMap map = make_tier_map(title, range, cells, columns, svg_rows);
      TERRACE_RETURN_IF_ERROR(write_atomically(arguments.svg, tier_map_svg(map, columns)));
    }
    const uint32_t columns = text_columns(arguments);
    const TierMap map = make_tier_map(title, range, cells, columns, text_rows);
    maps.push_back(to_json(map));
    text += (text.empty() ? "" : "\n") + tier_map_text(map, columns, output_style().colour);
  }
  if (context.json)
    print_json({{"maps", maps}});
  else if (arguments.svg.empty())
    print_text(text);
  else
    print_text("wrote " + arguments.svg + "\n");
  return {};
}

// --- the parser

void add_status_verb(Command family, Context& context) {
  Command status = family.add_subcommand("status", "Where bytes are, what moved, what it cost");
  const auto arguments = std::make_shared<StatusArguments>();
  add_tier_process(status, arguments->process);
  // A flag with a value, so that a process's number behind it is not taken for the seconds.
  status.add_flag("--watch{1}", arguments->watch,
                  "Again every second, or --watch=SECONDS, with rates; with --json one object a line");
  on_verb(status, context, [&context, arguments] {
    return arguments->watch.empty() ? show_tier_status(context, *arguments) : watch_status(context, *arguments);
  });
}

void add_map_verb(Command family, Context& context) {
  constexpr uint32_t width_min = 8, width_max = 256;
  Command map = family.add_subcommand("map", "A picture of a range: which granules are where, and how hot");
  const auto arguments = std::make_shared<MapArguments>();
  add_tier_process(map, arguments->process).required();
  add_tier_range(map, arguments->range);
  map.add_option("--svg", arguments->svg, "Write it as SVG").type_name("FILE");
  map.add_option("--width", arguments->width, "Columns (default: as the terminal has, 64 in a file)")
      .in_range(width_min, width_max)
      .type_name("N");
  on_verb(map, context, [&context, arguments] { return show_map(context, *arguments); });
}

}  // namespace

void add_tier_verbs(Command app, Context& context) {
  Command tier = app.add_subcommand(
      "tier", "Migration between DDR and CXL in the processes of this machine; needs no daemon for them");
  tier.require_subcommand();
  add_status_verb(tier, context);
  add_tier_change_verbs(tier, context);
  add_map_verb(tier, context);
}

}  // namespace terrace::cli
