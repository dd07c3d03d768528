// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/listing.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/terminal/local_time.h"
#include "core/base/clock.h"

namespace terrace::cli {
namespace {

constexpr const char* list_where = "list";

Error list_usage(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = list_where, .detail = std::move(detail)};
}

// "server.store_id" is a key in a value of the row. Null where there is none.
nlohmann::json value_at(const nlohmann::json& row, const std::string& key) {
  const nlohmann::json* at = &row;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    const auto found = at->is_object() ? at->find(key.substr(begin, end - begin)) : at->end();
    if (!at->is_object() || found == at->end()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  return *at;
}

std::vector<std::string> keys_of(const nlohmann::json& rows) {
  std::vector<std::string> keys;
  for (const nlohmann::json& row : rows) {
    for (auto field = row.begin(); field != row.end(); ++field)
      if (std::find(keys.begin(), keys.end(), field.key()) == keys.end()) keys.push_back(field.key());
  }
  return keys;
}

// Where there are no rows nobody knows their keys, and none of them is wrong.
Status check_key(const nlohmann::json& rows, const std::string& key) {
  if (rows.empty()) return {};
  const std::vector<std::string> keys = keys_of(rows);
  if (std::find(keys.begin(), keys.end(), key.substr(0, key.find('.'))) != keys.end()) return {};
  const std::string near = did_you_mean(key, keys);
  return list_usage("there is no key '" + key + "' here" +
                    (near.empty() ? "; there are " + join(keys, ", ") : "; did you mean '" + near + "'?"));
}

// --- which rows

struct Comparison {
  std::string key, sign, value;
};

Result<Comparison> parse_comparison(const std::string& text) {
  const size_t at = text.find_first_of("=!<>~");
  if (at != std::string::npos && at > 0) {
    const bool two = text[at] == '!' || (at + 1 < text.size() && text[at] != '=' && text[at + 1] == '=');
    const std::string sign = text.substr(at, two ? 2 : 1);
    if (sign != "!" && (sign.size() == 1 || sign[1] == '='))
      return Comparison{text.substr(0, at), sign, text.substr(at + sign.size())};
  }
  return list_usage("--where '" + text +
                    "' is no comparison: KEY=VALUE, KEY!=VALUE, KEY~PART, KEY<N, KEY<=N, KEY>N or KEY>=N, as "
                    "phase=active or bytes>=1G");
}

// Sizes and durations are numbers too: keys end in their unit.
std::optional<double> number_of(const std::string& key, const std::string& text) {
  char* end = nullptr;
  const double plain = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0') return plain;
  const Result<uint64_t> meant = key.ends_with("_ns") ? parse_duration(text) : parse_size(text);
  if (!meant.ok()) return std::nullopt;
  return static_cast<double>(*meant);
}

std::string text_of(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool equals(const nlohmann::json& value, const Comparison& wanted) {
  if (value.is_array())
    return std::any_of(value.begin(), value.end(), [&](const auto& item) { return equals(item, wanted); });
  if (text_of(value) == wanted.value) return true;
  if (!value.is_number()) return false;
  const std::optional<double> number = number_of(wanted.key, wanted.value);
  return number.has_value() && value.get<double>() == *number;
}

bool holds(const nlohmann::json& row, const Comparison& wanted) {
  const nlohmann::json value = value_at(row, wanted.key);
  if (wanted.sign == "=") return equals(value, wanted);
  if (wanted.sign == "!=") return !equals(value, wanted);
  if (wanted.sign == "~") return text_of(value).find(wanted.value) != std::string::npos;
  if (!value.is_number()) return false;
  const double number = value.get<double>(), bound = *number_of(wanted.key, wanted.value);
  if (wanted.sign == "<") return number < bound;
  if (wanted.sign == "<=") return number <= bound;
  if (wanted.sign == ">") return number > bound;
  return number >= bound;
}

Status check_comparison(const nlohmann::json& rows, const Comparison& wanted) {
  TERRACE_RETURN_IF_ERROR(check_key(rows, wanted.key));
  const bool ordered = wanted.sign[0] == '<' || wanted.sign[0] == '>';
  if (!ordered || number_of(wanted.key, wanted.value).has_value()) return {};
  return list_usage("--where '" + wanted.key + wanted.sign + wanted.value + "': '" + wanted.value +
                    "' is neither a number nor a size or duration");
}

// Numbers by their size, everything else by its text; what has no value comes first.
bool comes_before(const nlohmann::json& left, const nlohmann::json& right) {
  if (left.is_number() && right.is_number()) return left < right;
  if (left.is_null() != right.is_null()) return left.is_null();
  return text_of(left) < text_of(right);
}

// --- tables of keys

std::vector<std::string> split_keys(const std::string& keys) {
  std::vector<std::string> split;
  for (size_t begin = 0; begin <= keys.size();) {
    const size_t end = std::min(keys.find(',', begin), keys.size());
    if (end > begin) split.push_back(keys.substr(begin, end - begin));
    begin = end + 1;
  }
  return split;
}

// An array of plain values fits into a cell, an object does not.
bool fits_into_cell(const nlohmann::json& value) {
  if (value.is_object()) return false;
  return std::none_of(value.begin(), value.end(),
                      [](const nlohmann::json& item) { return item.is_structured(); }) ||
         !value.is_structured();
}

std::string cell_text(const nlohmann::json& value) {
  if (!value.is_array()) return text_of(value);
  std::vector<std::string> items;
  for (const nlohmann::json& item : value) items.push_back(text_of(item));
  return join(items, " ");
}

Result<std::vector<std::string>> table_keys(const nlohmann::json& rows, const std::string& keys) {
  if (!keys.empty()) {
    const std::vector<std::string> wanted = split_keys(keys);
    for (const std::string& key : wanted) TERRACE_RETURN_IF_ERROR(check_key(rows, key));
    if (wanted.empty()) return list_usage("--columns '" + keys + "' names no key; as id,label,bytes");
    return wanted;
  }
  std::vector<std::string> all = keys_of(rows);
  std::erase_if(all, [&](const std::string& key) {
    return !std::all_of(rows.begin(), rows.end(),
                        [&](const auto& row) { return fits_into_cell(value_at(row, key)); });
  });
  return all;
}

// --- again and again

Status repeat(const Context& context, const Listing& listing, const std::function<Status()>& work) {
  if (listing.watch.empty()) return work();
  constexpr double interval_min_s = 0.1, interval_max_s = 86'400;
  char* end = nullptr;
  const double seconds = std::strtod(listing.watch.c_str(), &end);
  if (*end != '\0' || !(seconds >= interval_min_s && seconds <= interval_max_s))
    return list_usage("--watch=" + listing.watch + ": from 0.1 to 86400 seconds");
  const bool terminal = ::isatty(STDOUT_FILENO) == 1 && !context.json;
  output_style().one_line = true;
  for (bool first = true;; first = false) {
    if (terminal)
      print_text("\x1b[H\x1b[2Jevery " + fixed(seconds, 1) + " s, " + format_moment(wall_clock_ns()) +
                 "; end it with Ctrl-C\n\n");
    else if (!first && !context.json)
      print_text("\n");
    // A manager that is not there for a moment comes again; one that was never there is an error.
    if (const Status done = work(); !done.ok()) {
      if (first || done.error().code != ErrorCode::unavailable) return done;
      Context other = context;
      fail(other, done.error());
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

}  // namespace

void on_list(Command list, Context& context, const std::shared_ptr<Listing>& listing,
             std::function<Status()> work) {
  list.add_option(
          "--where", listing->where,
          "Only rows with KEY=VALUE, KEY!=VALUE, KEY~PART or KEY>=N (<, <=, >), keys as --json has them; "
          "may be repeated")
      .type_name("COMPARISON")
      .allow_extra_args(false);
  list.add_option("--sort", listing->sort, "By this key; -KEY: the largest first").type_name("KEY");
  list.add_option("--limit", listing->limit, "At most so many rows (0: all)").type_name("N");
  list.add_option("--columns", listing->columns, "Just these keys, as id,label,bytes").type_name("KEYS");
  list.add_flag("--watch{2}", listing->watch,
                "Again every 2 seconds, or --watch=SECONDS; with --json one document a line");
  on_verb(list, context,
          [&context, listing, work = std::move(work)] { return repeat(context, *listing, work); });
}

Result<std::vector<size_t>> choose_rows(const nlohmann::json& rows, const Listing& listing) {
  std::vector<Comparison> comparisons;
  for (const std::string& text : listing.where) {
    TERRACE_ASSIGN_OR_RETURN(Comparison wanted, parse_comparison(text));
    TERRACE_RETURN_IF_ERROR(check_comparison(rows, wanted));
    comparisons.push_back(std::move(wanted));
  }
  std::vector<size_t> chosen;
  for (size_t index = 0; index < rows.size(); ++index) {
    const bool wanted = std::all_of(comparisons.begin(), comparisons.end(),
                                    [&](const Comparison& one) { return holds(rows[index], one); });
    if (wanted) chosen.push_back(index);
  }
  if (!listing.sort.empty()) {
    const bool down = listing.sort[0] == '-';
    const std::string key = listing.sort.substr(down ? 1 : 0);
    TERRACE_RETURN_IF_ERROR(check_key(rows, key));
    std::stable_sort(chosen.begin(), chosen.end(), [&](size_t left, size_t right) {
      return comes_before(value_at(rows[down ? right : left], key), value_at(rows[down ? left : right], key));
    });
  }
  if (listing.limit != 0 && chosen.size() > listing.limit) chosen.resize(listing.limit);
  return chosen;
}

Result<std::string> key_table(const nlohmann::json& rows, const std::string& keys) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> columns, table_keys(rows, keys));
  std::vector<std::string> titles = columns;
  for (std::string& title : titles)
    std::transform(title.begin(), title.end(), title.begin(),
                   [](unsigned char c) { return c == '_' ? ' ' : static_cast<char>(std::toupper(c)); });
  std::vector<std::vector<std::string>> cells;
  for (const nlohmann::json& row : rows) {
    std::vector<std::string>& line = cells.emplace_back();
    for (const std::string& key : columns) line.push_back(or_dash(cell_text(value_at(row, key))));
  }
  const size_t terminal_columns = std::exchange(output_style().columns, 0);  // asked for: never cut
  std::string table = format_table(titles, cells);
  output_style().columns = terminal_columns;
  return table;
}

Result<std::string> name_lines(const nlohmann::json& rows, const std::string& keys) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> columns, table_keys(rows, keys));
  std::string lines;
  for (const nlohmann::json& row : rows) {
    std::vector<std::string> values;
    for (const std::string& key : columns) values.push_back(printable(cell_text(value_at(row, key))));
    lines += join(values, "\t") + "\n";
  }
  return lines;
}

}  // namespace terrace::cli
