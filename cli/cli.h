// What the verbs of `terrace` share: global options, how errors become text and exit codes, output.
//
// Place     cli/main.cc builds one Context and lets each verb family add itself to the parser.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/result.h"

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

struct Context {
  std::string socket_path;  // --socket; empty: default_socket_path()
  bool json = false;        // --json
  int exit_code = exit_ok;  // set by the verb that ran
};

// Prints `error` to stderr, as "terrace: <text>" or as {"error": {...}} on stdout with --json, and sets the
// exit code.
void fail(Context& context, const Error& error);

// Prints JSON (one document, newline at the end).
void print_json(const nlohmann::json& document);

// A table for people: column titles, then rows; columns are padded, numbers right-aligned when every
// cell of the column looks like a number or a size.
void print_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows);

// One line of progress on a terminal ("import  128 MiB of 475 MiB"), at most ten a second, or a line every two
// seconds where stderr is no terminal. Nothing with --json.
class Progress {
 public:
  Progress(const Context& context, std::string what);
  ~Progress();
  void update(uint64_t done, uint64_t total);  // bytes

 private:
  std::string what_;
  bool enabled_ = true;
  bool terminal_ = false;
  bool drawn_ = false;
  uint64_t last_ns_ = 0;
};

// Each adds its verbs to `app`; the callbacks keep references to `context`.
void add_daemon_verbs(CLI::App& app, Context& context);
void add_status_verbs(CLI::App& app, Context& context);  // status, doctor, completion
void add_device_verbs(CLI::App& app, Context& context);
void add_pool_verbs(CLI::App& app, Context& context);
void add_lease_verbs(CLI::App& app, Context& context);
void add_tensor_verbs(CLI::App& app, Context& context);
void add_run_verb(CLI::App& app, Context& context);

}  // namespace terrace::cli
