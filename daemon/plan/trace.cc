// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/trace.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "core/base/units.h"

namespace terrace::plan {
namespace {

// Beyond these a number is a slip of the pen, and sums of it could overflow.
constexpr uint64_t memory_mib_max = uint64_t{1} << 30;  // 1 PiB
constexpr uint64_t time_s_max = uint64_t{1} << 33;      // past the year 2200 as Unix time; fits 64 bits in ns
constexpr uint64_t milli_max = uint64_t{1} << 30;
constexpr uint64_t rows_max = uint64_t{1} << 22;  // four million: below 200 MiB here

struct Place {
  const std::string& name;
  uint64_t line;
};

Error bad(const Place& place, const std::string& text) {
  return Error{.code = ErrorCode::invalid_argument,
               .where = "parse_trace",
               .detail = place.name + ", line " + std::to_string(place.line) + ": " + text};
}

// What was found, short enough for a message.
std::string quoted(std::string_view text) {
  constexpr size_t shown_max = 40;
  if (text.size() > shown_max) return "'" + std::string(text.substr(0, shown_max)) + "...'";
  return "'" + std::string(text) + "'";
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The fields of one line. A quoted field may hold commas and doubled quotes, no line break.
Result<std::vector<std::string>> split(std::string_view line, const Place& place) {
  std::vector<std::string> fields(1);
  bool in_quotes = false;
  bool was_quoted = false;
  for (size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    if (in_quotes) {
      if (c != '"') {
        fields.back() += c;
      } else if (at + 1 < line.size() && line[at + 1] == '"') {
        fields.back() += '"';
        ++at;
      } else {
        in_quotes = false;
      }
    } else if (c == '"' && fields.back().empty() && !was_quoted) {
      in_quotes = true;
      was_quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
      was_quoted = false;
    } else {
      fields.back() += c;
    }
  }
  if (in_quotes)
    return bad(place, "field " + std::to_string(fields.size()) +
                          " opens a quote that this line does not close; close it, or write it as \"\"");
  return fields;
}

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Status header(std::string_view line, uint64_t number) {
    const Place place{name_, number};
    TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> titles, split(line, place));
    columns_ = titles.size();
    for (size_t index = 0; index < titles.size(); ++index) {
      const std::string title(trimmed(titles[index]));
      if (!column_.emplace(title, index).second && !title.empty())
        return bad(place, "the header names the column " + quoted(title) + " twice; rename one");
    }
    for (const char* needed : {"memory_mib", "creation_time", "deletion_time"}) {
      if (column_.contains(needed)) continue;
      return bad(place, "the header has no column '" + std::string(needed) +
                            "'; the first line must name memory_mib, creation_time and deletion_time, "
                            "separated by commas, and begins with " +
                            quoted(line));
    }
    trace_.has_cpu = column_.contains("cpu_milli");
    trace_.has_gpu = column_.contains("num_gpu");
    return {};
  }

  Status row(std::string_view line, uint64_t number) {
    const Place place{name_, number};
    TERRACE_ASSIGN_OR_RETURN(fields_, split(line, place));
    if (fields_.size() != columns_) {
      return bad(place, "has " + std::to_string(fields_.size()) + " fields, the header " +
                            std::to_string(columns_) +
                            (fields_.size() < columns_ ? "; add what is missing, empty fields need their comma"
                                                       : "; quote a field that has a comma in it"));
    }
    if (trace_.requests.size() >= rows_max)
      return bad(place, "more than " + std::to_string(rows_max) + " rows; split the trace");
    Request request;
    TERRACE_ASSIGN_OR_RETURN(const uint64_t memory_mib, needed(place, "memory_mib", "MiB", memory_mib_max));
    TERRACE_ASSIGN_OR_RETURN(request.start_s, needed(place, "creation_time", "seconds", time_s_max));
    TERRACE_ASSIGN_OR_RETURN(const auto end_s, number_in(place, "deletion_time", "seconds", time_s_max));
    request.bytes = memory_mib * mib;
    if (end_s.has_value() && *end_s < request.start_s) {
      return bad(place, "deletion_time " + std::to_string(*end_s) + " is before creation_time " +
                            std::to_string(request.start_s) +
                            "; put them right, or leave deletion_time empty if it lived to the end");
    }
    request.end_s = end_s.value_or(UINT64_MAX);
    TERRACE_ASSIGN_OR_RETURN(const auto cpu_milli, number_in(place, "cpu_milli", "thousandths", milli_max));
    TERRACE_ASSIGN_OR_RETURN(const auto gpus, number_in(place, "num_gpu", "GPUs", milli_max));
    TERRACE_ASSIGN_OR_RETURN(const auto gpu_milli, number_in(place, "gpu_milli", "thousandths", 1000));
    request.cpu_milli = cpu_milli.value_or(0);
    request.gpu_milli = gpus.value_or(0) * gpu_milli.value_or(1000);
    trace_.end_s = std::max({trace_.end_s, request.start_s, end_s.value_or(0)});
    trace_.without_end += end_s.has_value() ? 0 : 1;
    trace_.without_memory += request.bytes == 0 ? 1 : 0;
    trace_.requests.push_back(request);
    return {};
  }

  Result<Trace> finish() {
    if (column_.empty()) return bad({name_, 1}, "the file is empty; it needs a header line and rows");
    if (trace_.requests.empty()) return bad({name_, 1}, "there is a header and no row below it");
    for (Request& request : trace_.requests) request.end_s = std::min(request.end_s, trace_.end_s);
    std::stable_sort(trace_.requests.begin(), trace_.requests.end(),
                     [](const Request& a, const Request& b) { return a.start_s < b.start_s; });
    trace_.begin_s = trace_.requests.front().start_s;
    measure();
    return std::move(trace_);
  }

 private:
  // nullopt: the column is not there, or the field is empty.
  Result<std::optional<uint64_t>> number_in(const Place& place, const char* column, const char* unit,
                                            uint64_t max) const {
    const auto at = column_.find(column);
    if (at == column_.end()) return std::optional<uint64_t>{};
    const std::string_view text = trimmed(fields_[at->second]);
    if (text.empty()) return std::optional<uint64_t>{};
    uint64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc{} || end != text.data() + text.size()) {
      return bad(place, "column " + std::string(column) + " (field " + std::to_string(at->second + 1) +
                            "): " + quoted(text) + " is no whole number of " + unit +
                            "; write digits only, without sign, point or unit");
    }
    if (value > max) {
      return bad(place, "column " + std::string(column) + " (field " + std::to_string(at->second + 1) +
                            "): " + quoted(text) + " is beyond " + std::to_string(max) + " " + unit +
                            "; is the unit right?");
    }
    return std::optional<uint64_t>{value};
  }

  Result<uint64_t> needed(const Place& place, const char* column, const char* unit, uint64_t max) const {
    TERRACE_ASSIGN_OR_RETURN(const auto value, number_in(place, column, unit, max));
    if (value.has_value()) return *value;
    return bad(place, "column " + std::string(column) + " (field " + std::to_string(column_.at(column) + 1) +
                          ") is empty; it needs a whole number of " + unit);
  }

  // What is alive at once; an end frees before a start of the same second takes.
  void measure() {
    std::vector<const Request*> by_end;
    for (const Request& request : trace_.requests) {
      by_end.push_back(&request);
      trace_.largest_bytes = std::max(trace_.largest_bytes, request.bytes);
    }
    std::sort(by_end.begin(), by_end.end(),
              [](const Request* a, const Request* b) { return a->end_s < b->end_s; });
    uint64_t started_bytes = 0;
    uint64_t ended_bytes = 0;
    size_t started = 0;
    size_t ended = 0;
    for (const Request& request : trace_.requests) {
      if (request.end_s == request.start_s) continue;  // alive for no time; skipped among the ends too
      for (; ended < by_end.size() && by_end[ended]->end_s <= request.start_s; ++ended)
        if (by_end[ended]->end_s > by_end[ended]->start_s) {
          ended_bytes += by_end[ended]->bytes;
          --started;
        }
      started_bytes += request.bytes;
      ++started;
      trace_.peak_bytes = std::max(trace_.peak_bytes, started_bytes - ended_bytes);
      trace_.peak_requests = std::max<uint64_t>(trace_.peak_requests, started);
    }
  }

  const std::string& name_;
  std::map<std::string, size_t> column_;
  size_t columns_ = 0;
  std::vector<std::string> fields_;
  Trace trace_;
};

}  // namespace

Result<Trace> parse_trace(std::string_view text, const std::string& name) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark, as spreadsheets write it
  Reader reader(name);
  bool seen_header = false;
  for (uint64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (trimmed(line).empty()) continue;
    TERRACE_RETURN_IF_ERROR(seen_header ? reader.row(line, number) : reader.header(line, number));
    seen_header = true;
  }
  return reader.finish();
}

uint64_t request_bytes_at(const Trace& trace, uint64_t permille) {
  std::vector<uint64_t> sizes;
  for (const Request& request : trace.requests)
    if (request.bytes > 0) sizes.push_back(request.bytes);
  if (sizes.empty()) return 0;
  std::sort(sizes.begin(), sizes.end());
  const uint64_t rank =
      (sizes.size() * std::min<uint64_t>(permille, 1000) + 999) / 1000;  // of the one wanted, from 1
  return sizes[rank == 0 ? 0 : rank - 1];
}

}  // namespace terrace::plan
