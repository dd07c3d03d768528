// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/terminal/yaml.h"
#include "core/base/clock.h"

namespace terrace::cli {
namespace {

// Columns a terminal needs for `text`: code points, counted by the bytes that start one.
size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// The first `columns` of `text`, the last of them a mark that more follows.
std::string cut_to(const std::string& text, size_t columns) {
  if (display_width(text) <= columns) return text;
  size_t at = 0, seen = 0;
  while (at < text.size()) {
    const bool starts = (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
    if (starts && seen++ == columns - 1) break;
    ++at;
  }
  return text.substr(0, at) + "\u2026";
}

// Takes from the widest columns of words until the table fits, or none has more than a few columns left.
void fit_widths(std::vector<size_t>& width, const std::vector<bool>& right, size_t columns_max) {
  constexpr size_t least = 8, between = 2;
  if (columns_max == 0 || width.empty()) return;
  size_t total = between * (width.size() - 1);
  for (const size_t columns : width) total += columns;
  while (total > columns_max) {
    size_t widest = width.size();
    for (size_t column = 0; column < width.size(); ++column)
      if (!right[column] && width[column] > least && (widest == width.size() || width[column] > width[widest]))
        widest = column;
    if (widest == width.size()) return;
    --width[widest];
    --total;
  }
}

// "12", "1.5 GiB", "-", "37%", "2 h": something that is read by comparing digits.
bool looks_numeric(std::string_view cell) {
  if (cell.empty() || cell == "-") return true;
  size_t at = 0;
  while (at < cell.size() && (std::isdigit(static_cast<unsigned char>(cell[at])) || cell[at] == '.')) ++at;
  if (at == 0) return false;
  std::string_view unit = cell.substr(at);
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  constexpr std::string_view units[] = {"",   "%",  "B",  "KiB", "MiB", "GiB", "TiB",
                                        "ns", "us", "ms", "s",   "min", "h",   "d"};
  return std::find(std::begin(units), std::end(units), unit) != std::end(units);
}

[[noreturn]] void end_for_write_error(int os_errno) {
  if (os_errno == EPIPE) {
    // kj ignores SIGPIPE for the process; an ordinary end by that signal is what a shell expects.
    std::signal(SIGPIPE, SIG_DFL);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    sigprocmask(SIG_UNBLOCK, &mask, nullptr);
    raise(SIGPIPE);
  } else {
    std::fprintf(stderr, "terrace: cannot write the output: %s\n", std::strerror(os_errno));
  }
  _exit(exit_failed);
}

}  // namespace

ExitCode exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return exit_ok;
    case ErrorCode::invalid_argument: return exit_usage;
    case ErrorCode::not_found:
    case ErrorCode::lease_expired:
    case ErrorCode::lease_revoked: return exit_not_found;
    case ErrorCode::already_exists:
    case ErrorCode::busy: return exit_conflict;
    case ErrorCode::permission_denied: return exit_denied;
    case ErrorCode::capacity_exhausted:
    case ErrorCode::limit_exceeded:
    case ErrorCode::out_of_memory: return exit_capacity;
    case ErrorCode::unavailable: return exit_unavailable;
    case ErrorCode::corrupt: return exit_mismatch;
    case ErrorCode::io_error:
    case ErrorCode::unsupported:
    case ErrorCode::version_mismatch:
    case ErrorCode::cancelled:
    case ErrorCode::internal: return exit_failed;
  }
  return exit_failed;
}

nlohmann::json error_json(const Error& error) {
  return {{"error",
           {{"code", error_code_name(error.code)},
            {"exit_code", static_cast<int>(exit_code_of(error.code))},
            {"message", error.detail.empty() ? "operation failed" : error.detail},
            {"os_errno", error.os_errno},
            {"where", error.where == nullptr ? "" : error.where}}}};
}

void fail(Context& context, const Error& error) {
  context.exit_code = exit_code_of(error.code);
  if (context.json) {
    print_json(error_json(error));
    return;
  }
  std::string text = error.detail.empty() ? "the operation failed" : error.detail;
  text += " [";
  text += error_code_name(error.code);
  if (error.os_errno != 0) {
    const char* words = strerrordesc_np(error.os_errno);
    text += std::string(": ") + (words != nullptr ? words : std::to_string(error.os_errno).c_str());
  }
  // The place helps only with what a user cannot fix.
  if (error.code == ErrorCode::internal && error.where != nullptr && *error.where != '\0')
    (text += ", in ") += error.where;
  text += ']';
  std::fprintf(stderr, "terrace: %s\n", escaped(text).c_str());
}

void fail_with(Context& context, const Error& error, const char* key, const nlohmann::json& reached,
               std::string_view text) {
  if (context.json) {
    context.exit_code = exit_code_of(error.code);
    nlohmann::json document = error_json(error);
    document[key] = reached;
    print_json(document);
    return;
  }
  print_text(text);
  fail(context, error);
}

void print_text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      end_for_write_error(errno);
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void print_json(const nlohmann::json& document) {
  // Bytes that are not UTF-8 (a label set by a careless client) are replaced rather than thrown at.
  const OutputStyle& style = output_style();
  if (style.yaml)
    print_text(to_yaml(document));
  else
    print_text(document.dump(style.one_line ? -1 : 2, ' ', false, nlohmann::json::error_handler_t::replace) +
               "\n");
}

std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) {
    if (&word != &words.front()) text += between;
    text += word;
  }
  return text;
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string printable(std::string_view text) {
  std::string result(text);
  for (size_t at = 0; at < result.size(); ++at) {
    const auto byte = static_cast<unsigned char>(result[at]);
    if (byte < 0x20 || byte == 0x7f) result[at] = '?';
    // U+0080..U+009F are control characters too, two bytes long in UTF-8.
    const bool c1 = byte == 0xc2 && at + 1 < result.size() && static_cast<unsigned char>(result[at + 1]) < 0xa0;
    if (c1) result.replace(at, 2, "?");
  }
  return result;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool c1 = byte == 0xc2 && at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) >= 0x80 &&
                    static_cast<unsigned char>(text[at + 1]) < 0xa0;
    if (byte == '\n' && text.substr(at + 1, 2) == "  ") {
      result += '\n';
    } else if (byte == '\n') {
      result += "\\n";
    } else if (byte == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f || c1) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", c1 ? static_cast<unsigned char>(text[++at]) : byte);
      result += code;
    } else {
      result += text[at];
    }
  }
  return result;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string count_text(uint64_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

std::string format_table(const std::vector<std::string>& titles,
                         const std::vector<std::vector<std::string>>& rows) {
  const size_t columns = titles.size();
  std::vector<size_t> width(columns);
  std::vector<bool> right(columns, true);
  std::vector<bool> empty(columns, true);  // a column of dashes says nothing about its kind
  for (size_t column = 0; column < columns; ++column) width[column] = display_width(titles[column]);
  for (const auto& row : rows) {
    for (size_t column = 0; column < columns; ++column) {
      const std::string_view cell = column < row.size() ? std::string_view(row[column]) : std::string_view();
      width[column] = std::max(width[column], display_width(cell));
      if (!looks_numeric(cell)) right[column] = false;
      if (!cell.empty() && cell != "-") empty[column] = false;
    }
  }

  fit_widths(width, right, output_style().columns);

  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t column = 0; column < columns; ++column) {
      const std::string cell =
          cut_to(column < cells.size() ? printable(cells[column]) : std::string(), width[column]);
      const std::string padding(width[column] - display_width(cell), ' '), shown = coloured_cell(cell);
      if (column > 0) line += "  ";
      line += right[column] && !empty[column] ? padding + shown : shown + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line(titles);
  for (const auto& row : rows) add_line(row);
  return text;
}

void print_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  print_text(format_table(titles, rows));
}

std::string format_block(const std::vector<std::pair<std::string, std::string>>& fields) {
  size_t width = 0;
  for (const auto& field : fields) width = std::max(width, display_width(field.first));
  std::string text;
  for (const auto& field : fields) {
    text += "  " + field.first + std::string(width - display_width(field.first) + 2, ' ') +
            printable(field.second) + "\n";
  }
  return text;
}

Progress::Progress(const Context& context, std::string what)
    : what_(std::move(what)), enabled_(!context.json), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_ && terminal_) std::fputc('\n', stderr);
}

void Progress::update(uint64_t done, uint64_t total) {
  if (!enabled_) return;
  constexpr uint64_t interval_terminal_ns = ns_per_s / 10;
  constexpr uint64_t interval_log_ns = 2 * ns_per_s;
  const uint64_t now_ns = SystemClock().now_ns();
  if (last_ns_ == 0 && !terminal_) last_ns_ = now_ns;  // a quick job needs no line in a log
  const bool last_step = terminal_ && done >= total;
  if (!last_step && now_ns - last_ns_ < (terminal_ ? interval_terminal_ns : interval_log_ns)) return;
  last_ns_ = now_ns;
  const std::string line = what_ + "  " + format_size(done) + " of " + format_size(total);
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace terrace::cli
