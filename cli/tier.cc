// `terrace tier`: how memory migrates in the processes of this machine, and what they are asked to do about it.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "cli/cli.h"
#include "cli/tier_describe.h"
#include "cli/tier_map.h"
#include "core/base/clock.h"
#include "tiering/policy/policy.h"

namespace terrace::cli {
namespace {

using layout::TierState;

constexpr const char* where = "tier";
constexpr uint64_t wait_ns_default = 5 * ns_per_s;

struct StatusArguments {
  std::string process;
  std::string watch;  // empty: once
};

struct ChangeArguments {
  std::string process, range;
  bool all = false;
  uint64_t wait_ns = wait_ns_default;
  std::string copy_budget;
  std::optional<uint64_t> ddr_bytes_max;
  std::string policy;
};

struct MapArguments {
  std::string process, range, svg;
  uint32_t width = 0;
};

Error usage(const std::string& detail) {
  return {.code = ErrorCode::invalid_argument, .where = where, .detail = detail};
}

// What was found wrong goes to people as it is found, beside the answer.
void say_problems(const Context& context, const TierScan& scan) {
  if (context.json) return;
  for (const std::string& problem : scan.problems) std::fprintf(stderr, "terrace: %s\n", problem.c_str());
}

// --- who is meant

bool is_meant(const TierPageView& page, const std::string& word) {
  if (only_digits(word)) return std::to_string(page.pid) == word;
  return page.program == word || std::any_of(page.ranges.begin(), page.ranges.end(),
                                             [&](const TierRangeView& range) { return range.name == word; });
}

Error no_such_process(const TierScan& scan, const std::string& word) {
  std::vector<std::string> known;
  for (const TierPageView& page : scan.pages) {
    known.push_back(page.program);
    known.push_back(std::to_string(page.pid));
    for (const TierRangeView& range : page.ranges) known.push_back(range.name);
  }
  const std::string near = did_you_mean(word, known);
  std::string detail =
      "no process " + std::string(only_digits(word) ? "" : "or range ") + "'" + word + "' migrates memory";
  if (only_digits(word)) detail = "process " + word + " migrates no memory";
  if (!near.empty())
    detail += "; did you mean '" + near + "'?";
  else if (scan.pages.empty())
    detail += "; none does" + std::string(::geteuid() == 0 ? "" : " for this user");
  else
    detail += "; `terrace tier status` lists those that do";
  return {.code = ErrorCode::not_found, .where = where, .detail = detail};
}

// Empty word: all. Errors    not_found
Result<std::vector<TierPageView>> choose(const TierScan& scan, const std::string& word) {
  if (word.empty()) return scan.pages;
  std::vector<TierPageView> meant;
  for (const TierPageView& page : scan.pages)
    if (is_meant(page, word)) meant.push_back(page);
  if (meant.empty()) return no_such_process(scan, word);
  return meant;
}

// The one process that `word` means. Errors    not_found; invalid_argument  several
Result<TierPageView> choose_one(const TierScan& scan, const std::string& word) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<TierPageView> meant, choose(scan, word));
  if (meant.size() == 1) return std::move(meant.front());
  std::string names;
  for (const TierPageView& page : meant) names += (names.empty() ? "" : ", ") + page.title();
  return usage("'" + word + "' is several: " + names + "; say which by its number");
}

// Its range of that name, or all; a range's name may have been what chose the process, too.
Result<std::vector<TierRangeView>> ranges_of(const TierPageView& page, const std::string& word,
                                             const std::string& name) {
  if (page.ranges.empty())
    return Error{.code = ErrorCode::not_found, .where = where, .detail = page.title() + " has no range now"};
  const bool by_range = name.empty() && !only_digits(word) && page.program != word;
  const std::string& wanted = by_range ? word : name;
  if (wanted.empty()) return page.ranges;
  std::vector<TierRangeView> found;
  std::vector<std::string> known;
  for (const TierRangeView& range : page.ranges) {
    known.push_back(range.name);
    if (range.name == wanted) found.push_back(range);
  }
  if (!found.empty()) return found;
  std::string names;
  for (const std::string& one : known) names += (names.empty() ? "" : ", ") + one;
  const std::string near = did_you_mean(wanted, known);
  return Error{.code = ErrorCode::not_found,
               .where = where,
               .detail = page.title() + " has no range '" + wanted + "'; " +
                         (near.empty() ? "it has " + names : "did you mean '" + near + "'?")};
}

// --- status

nlohmann::json scan_json(const std::vector<TierPageView>& pages, const TierScan& scan) {
  nlohmann::json processes = nlohmann::json::array();
  for (const TierPageView& page : pages) processes.push_back(to_json(page));
  return {{"processes", processes}, {"problems", scan.problems}, {"swept", scan.swept}};
}

std::string nobody() {
  return std::string("no process ") + (::geteuid() == 0 ? "" : "of this user ") +
         "migrates memory now; one does that uses a tiered range, or runs under `terrace run`\n";
}

Status show_status(const Context& context, const StatusArguments& arguments) {
  const TierScan scan = scan_tier_pages(TierPlaces::own());
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TierPageView> pages, choose(scan, arguments.process));
  if (context.json) {
    print_json(scan_json(pages, scan));
    return {};
  }
  say_problems(context, scan);
  if (pages.empty()) {
    print_text(nobody());
  } else if (arguments.process.empty()) {
    print_text(tier_table(pages));
  } else {
    std::string text;
    for (const TierPageView& page : pages) text += (text.empty() ? "" : "\n") + tier_block(page);
    print_text(text);
  }
  return {};
}

// "2", "0.5", "500ms". Errors    invalid_argument
Result<uint64_t> parse_interval(const std::string& text) {
  constexpr uint64_t shortest_ns = 100 * ns_per_ms;
  const bool bare = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  TERRACE_ASSIGN_OR_RETURN(const uint64_t interval_ns, parse_duration(bare ? text + "s" : text));
  if (interval_ns < shortest_ns || interval_ns > 86400 * ns_per_s)
    return usage("--watch=" + text + ": from 0.1 seconds to a day");
  return interval_ns;
}

// Until it is ended, or what was asked for has. A process that is not there yet is no error on the second look:
// then it ended.
Status watch_status(const Context& context, const StatusArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const uint64_t interval_ns, parse_interval(arguments.watch));
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
    if (context.json) {
      print_text(scan_json(*pages, scan).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    } else {
      std::string text = pages->empty() ? nobody() : rates.table(*pages, clock.now_ns());
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

// --- set, pause, resume

// "512M", "2G/s"; "none": no bound.
Result<uint64_t> parse_copy_budget(const std::string& text) {
  if (text == "none") return uint64_t{0};
  TERRACE_ASSIGN_OR_RETURN(const uint64_t bytes,
                           parse_size(text.ends_with("/s") ? text.substr(0, text.size() - 2) : text));
  // 0 is how the engine says "no bound"; who writes 0 means the opposite.
  if (bytes == 0)
    return usage("--copy-budget 0 would be no bound: write 'none' for that, or use 'terrace tier pause'");
  return bytes;
}

Result<TierRequest> request_of(const ChangeArguments& arguments) {
  TierRequest request;
  request.ddr_bytes_max = arguments.ddr_bytes_max;
  request.policy = arguments.policy;
  if (!arguments.policy.empty()) TERRACE_RETURN_IF_ERROR(check_policy(arguments.policy));
  if (!arguments.copy_budget.empty()) {
    TERRACE_ASSIGN_OR_RETURN(request.copy_bytes_per_s_max, parse_copy_budget(arguments.copy_budget));
  }
  return request;
}

// One range that is asked.
struct Asked {
  TierPageView page;
  TierRangeView range;
};

Result<std::vector<Asked>> whom_to_ask(const TierScan& scan, const ChangeArguments& arguments) {
  std::vector<Asked> asked;
  if (arguments.all) {
    // Those that migrate nothing anyhow have nothing to pause.
    for (const TierPageView& page : scan.pages)
      for (const TierRangeView& range : page.ranges)
        if (range.state == TierState::running || range.state == TierState::paused)
          asked.push_back({page, range});
    return asked;
  }
  TERRACE_ASSIGN_OR_RETURN(const TierPageView page, choose_one(scan, arguments.process));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TierRangeView> ranges,
                           ranges_of(page, arguments.process, arguments.range));
  for (const TierRangeView& range : ranges) asked.push_back({page, range});
  return asked;
}

nlohmann::json changed_json(const Asked& one) {
  return {{"pid", one.page.pid}, {"program", one.page.program}, {"range", to_json(one.range)}};
}

std::string changed_line(const Asked& one) {
  const TierRangeView& range = one.range;
  return one.page.title() + " " + range.name + ": " + tier_state_name(range.state) + ", policy " +
         or_dash(range.policy) + ", " + format_size(range.numbers.ddr_bytes_max) +
         " of DDR, copies: " + describe_rate(range.numbers.copy_bytes_per_s_max) + "\n";
}

// How the range is now, as its process says.
Asked look_again(const TierPlaces& places, Asked one) {
  const auto file = open_tier_page(places, one.page, TierAccess::read);
  const auto now = file.ok() ? file->read() : Result<TierPageView>(file.error());
  if (now.ok())
    for (const TierRangeView& range : now->ranges)
      if (range.index == one.range.index) one.range = range;
  return one;
}

Status change(Context& context, const ChangeArguments& arguments, const TierRequest& request) {
  const TierPlaces places = TierPlaces::own();
  const TierScan scan = scan_tier_pages(places);
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Asked> asked, whom_to_ask(scan, arguments));
  nlohmann::json changed = nlohmann::json::array();
  std::string text;
  for (const Asked& one : asked) {
    if (Status done = ask_tier_engine(places, one.page, one.range, request, arguments.wait_ns); !done.ok()) {
      fail_with(context, done.error(), "changed", changed, text);
      return {};
    }
    const Asked now = look_again(places, one);
    changed.push_back(changed_json(now));
    text += changed_line(now);
  }
  if (context.json)
    print_json({{"changed", changed}});
  else
    print_text(text.empty() ? "no range migrates now: nothing to do\n" : text);
  return {};
}

Status change_settings(Context& context, const ChangeArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const TierRequest request, request_of(arguments));
  if (request.policy.empty() && !request.ddr_bytes_max.has_value() && !request.copy_bytes_per_s_max.has_value())
    return usage("say what to change: --policy, --ddr, --copy-budget");
  return change(context, arguments, request);
}

Status change_paused(Context& context, const ChangeArguments& arguments, bool paused) {
  if (arguments.all == !arguments.process.empty())
    return usage(arguments.all ? "either a process or --all" : "say which process, or --all");
  TierRequest request;
  request.paused = paused;
  return change(context, arguments, request);
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

bool wants_colour() {
  const char* none = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  if (none != nullptr && *none != '\0') return false;
  return ::isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
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
    return usage("--svg draws one range; say which by --range: " + names);
  }
  TERRACE_ASSIGN_OR_RETURN(const TierPageFile file, open_tier_page(places, page, TierAccess::read));
  nlohmann::json maps = nlohmann::json::array();
  std::string text;
  for (const TierRangeView& range : ranges) {
    const std::string title = page.title() + " " + range.name;
    if (!range.has_cells)
      return Error{
          .code = ErrorCode::corrupt, .where = where, .detail = title + " shows no cells that make sense"};
    TERRACE_ASSIGN_OR_RETURN(const std::vector<uint8_t> cells, file.cells(range));
    if (!arguments.svg.empty()) {
      const uint32_t columns = arguments.width != 0 ? arguments.width : svg_columns;
      const TierMap map = make_tier_map(title, range, cells, columns, svg_rows);
      TERRACE_RETURN_IF_ERROR(write_atomically(arguments.svg, tier_map_svg(map, columns)));
    }
    const uint32_t columns = text_columns(arguments);
    const TierMap map = make_tier_map(title, range, cells, columns, text_rows);
    maps.push_back(to_json(map));
    text += (text.empty() ? "" : "\n") + tier_map_text(map, columns, wants_colour());
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

std::string policy_type() {
  std::string names;
  for (const tiering::PolicyEntry& entry : tiering::policies())
    names += (names.empty() ? "" : "|") + std::string(entry.name);
  return names;
}

std::string policy_help() {
  std::string text = "Which granules are where:";
  for (const tiering::PolicyEntry& entry : tiering::policies())
    text += std::string(" ") + entry.name + " (" + entry.what + ");";
  text.back() = ' ';
  text.pop_back();
  return text;
}

CLI::Option* add_process(CLI::App& verb, std::string& process) {
  return verb.add_option("process", process, "Its number, its program's name, or a range's")
      ->type_name("PID|NAME");
}

void add_range(CLI::App& verb, std::string& range) {
  verb.add_option("--range", range, "Only this range of the process (default: all)")->type_name("NAME");
}

void add_set_verb(CLI::App& family, Context& context) {
  CLI::App* set = family.add_subcommand("set", "Another policy or budget for a process, or one of its ranges");
  const auto arguments = std::make_shared<ChangeArguments>();
  add_process(*set, arguments->process)->required();
  add_range(*set, arguments->range);
  set->add_option("--policy", arguments->policy, policy_help())->type_name(policy_type());
  set->add_option_function<std::string>(
         "--ddr",
         [arguments](const std::string& text) {
           const Result<uint64_t> bytes = parse_size(text);
           if (!bytes.ok()) throw CLI::ValidationError("--ddr", bytes.error().detail);
           arguments->ddr_bytes_max = *bytes;
         },
         "What the range may have in DDR")
      ->type_name("SIZE");
  set->add_option(
         "--copy-budget", arguments->copy_budget,
         "How much may be copied a second, as 512M or 2G/s, for all ranges of the process; 'none': no bound")
      ->type_name("SIZE");
  add_duration_option(*set, "--wait", arguments->wait_ns,
                      "How long to wait for the process's answer (default 5s)");
  on_verb(*set, context, [&context, arguments] { return change_settings(context, *arguments); });
}

void add_pause_verb(CLI::App& family, Context& context, bool pause) {
  CLI::App* verb = family.add_subcommand(pause ? "pause" : "resume",
                                         pause ? "No more moves in a process, until resume" : "Moves again");
  const auto arguments = std::make_shared<ChangeArguments>();
  add_process(*verb, arguments->process);
  add_range(*verb, arguments->range);
  verb->add_flag("--all", arguments->all,
                 ::geteuid() == 0 ? "Every process of this machine" : "Every process of this user");
  add_duration_option(*verb, "--wait", arguments->wait_ns, "How long to wait for each answer (default 5s)");
  on_verb(*verb, context, [&context, arguments, pause] { return change_paused(context, *arguments, pause); });
}

void add_status_verb(CLI::App& family, Context& context) {
  CLI::App* status = family.add_subcommand("status", "Where bytes are, what moved, what it cost");
  const auto arguments = std::make_shared<StatusArguments>();
  add_process(*status, arguments->process);
  // A flag with a value, so that a process's number behind it is not taken for the seconds.
  status->add_flag("--watch{1}", arguments->watch,
                   "Again every second, or --watch=SECONDS, with rates; with --json one object a line");
  on_verb(*status, context, [&context, arguments] {
    return arguments->watch.empty() ? show_status(context, *arguments) : watch_status(context, *arguments);
  });
}

void add_map_verb(CLI::App& family, Context& context) {
  constexpr uint32_t width_min = 8, width_max = 256;
  CLI::App* map = family.add_subcommand("map", "A picture of a range: which granules are where, and how hot");
  const auto arguments = std::make_shared<MapArguments>();
  add_process(*map, arguments->process)->required();
  add_range(*map, arguments->range);
  map->add_option("--svg", arguments->svg, "Write it as SVG")->type_name("FILE");
  map->add_option("--width", arguments->width, "Columns (default: as the terminal has, 64 in a file)")
      ->check(CLI::Range(width_min, width_max).description(""))
      ->type_name("N");
  on_verb(*map, context, [&context, arguments] { return show_map(context, *arguments); });
}

}  // namespace

void add_tier_verbs(CLI::App& app, Context& context) {
  CLI::App* tier = app.add_subcommand(
      "tier", "Migration between DDR and CXL in the processes of this machine; needs no daemon");
  tier->require_subcommand(1);
  add_status_verb(*tier, context);
  add_set_verb(*tier, context);
  add_pause_verb(*tier, context, true);
  add_pause_verb(*tier, context, false);
  add_map_verb(*tier, context);
}

}  // namespace terrace::cli
