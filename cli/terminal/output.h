// SPDX-License-Identifier: Apache-2.0
// The output of `terrace`: tables for people, one JSON document for programs, errors as text and exit code.
//
// Place     Below the verbs; knows neither the parser nor the RPC.
// Threads   The main thread, except Progress::update, which one thread at a time may call.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/output_style.h"
#include "core/base/result.h"
#include "core/base/units.h"

namespace terrace::cli {

// Exit codes, documented in `terrace --help` and docs/operations/cli.md.
enum ExitCode : int {
  exit_ok = 0,
  exit_failed = 1,       // anything not listed below
  exit_usage = 2,        // the command line is wrong
  exit_not_found = 3,    // no such pool, lease, device, tensor, file
  exit_capacity = 4,     // not enough memory, or a limit
  exit_unavailable = 5,  // no daemon answers
  exit_denied = 6,       // this user may not
  exit_conflict = 7,     // exists already, or busy
  exit_mismatch = 8,     // verify found a difference, or bytes are corrupt
};

// A manager on another machine. What is empty is looked for in the environment, then below ~/.config/terrace.
struct RemoteOptions {
  std::string address;               // --connect: "tls://HOST:PORT"
  std::string ca, certificate, key;  // PEM files: --tls-ca, --tls-cert, --tls-key
  std::string server_name;           // --tls-name: that its certificate must have
};

struct Context {
  std::string socket_path;                    // --socket; empty: default_socket_path()
  RemoteOptions remote;                       // manager_place.h says which of both counts
  bool json = false;                          // --json, --output json or yaml: a document for programs
  OutputFormat format = OutputFormat::table;  // --output
  int exit_code = exit_ok;                    // set by the verb that ran
  uint64_t call_timeout_ns = 60 * ns_per_s;   // --timeout: for one answer of the daemon
};

// The exit code that stands for an error.
ExitCode exit_code_of(ErrorCode code);

// Prints `error` to stderr, as "terrace: <text>" or as {"error": {...}} on stdout with --json, and sets the
// exit code. One JSON document a run: call it once, and print nothing else on stdout with --json.
void fail(Context& context, const Error& error);

// As fail(), with what was reached by then: beside "error" under `key` with --json, else `text` on stdout
// first.
void fail_with(Context& context, const Error& error, const char* key, const nlohmann::json& reached,
               std::string_view text);

// {"error": {"code", "exit_code", "message", "os_errno", "where"}}, what fail() prints with --json.
nlohmann::json error_json(const Error& error);

// Writes to stdout. When the reader has gone (`| head`) the process ends here, quietly and by SIGPIPE as other
// programs do; when the output cannot be written (disk full) it ends with exit_failed and a message.
void print_text(std::string_view text);

// Prints JSON (one document, newline at the end), or the same as YAML: output_style().
void print_json(const nlohmann::json& document);

// A table for people: column titles, then rows; columns are padded, numbers right-aligned when every
// cell of the column looks like a number or a size. Control characters in cells become '?', so that a label
// cannot move an operator's cursor. No trailing blanks. On a terminal that is too narrow the widest columns
// of words are cut, and words that mean trouble have a colour (output_style()).
std::string format_table(const std::vector<std::string>& titles,
                         const std::vector<std::vector<std::string>>& rows);
void print_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows);

// "  name          value" lines under a heading, for blocks such as `lease show`.
std::string format_block(const std::vector<std::pair<std::string, std::string>>& fields);

// Replaces control characters by '?', leaving UTF-8 alone. For names and labels of strangers.
std::string printable(std::string_view text);

// An error's text: control characters become \n, \t or \x1b, so that a name echoed in it cannot forge lines. A
// line break before two blanks stays: so are quoted logs set.
std::string escaped(std::string_view text);

// "-" for an empty cell.
std::string or_dash(const std::string& text);

std::string join(const std::vector<std::string>& words, std::string_view between);

// "1 tensor", "2 tensors".
std::string count_text(uint64_t count, const std::string& one);
// A number with so many digits behind the point.
std::string fixed(double value, int digits);

// One line of progress on a terminal ("import  128 MiB of 475 MiB"), at most ten a second, or a line every two
// seconds where stderr is no terminal. Nothing with --json.
class Progress {
 public:
  Progress(const Context& context, std::string what);
  ~Progress();  // ends the line on a terminal
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(uint64_t done, uint64_t total);  // bytes

 private:
  std::string what_;
  bool enabled_ = true;
  bool terminal_ = false;
  bool drawn_ = false;
  uint64_t last_ns_ = 0;
};

}  // namespace terrace::cli
