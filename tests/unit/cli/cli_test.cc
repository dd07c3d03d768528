// SPDX-License-Identifier: Apache-2.0
// CLI without a daemon: tables, exit codes, JSON forms, the words around a mistyped command, the doctor's
// checks.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/doctor/doctor.h"
#include "cli/terminal/verb.h"
#include "cli/verbs/daemon_process.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string explain(const std::vector<std::string>& words) {
  Context context;
  const CommandLine line = build_parser(context);
  return explain_unknown_word(line.root(), words);
}

}  // namespace

TEST_CASE("Table: words are left-aligned, columns of sizes and numbers right-aligned, nothing trails") {
  const std::string text =
      format_table({"NAME", "SIZE", "N"}, {{"a", "1.5 GiB", "3"}, {"longer", "64 MiB", "12"}});
  CHECK(text ==
        "NAME       SIZE   N\n"
        "a       1.5 GiB   3\n"
        "longer   64 MiB  12\n");
}

TEST_CASE("Table: one word among the numbers keeps the column left-aligned") {
  const std::string text = format_table({"X"}, {{"12"}, {"none"}});
  CHECK(text == "X\n12\nnone\n");
}

TEST_CASE("Table: a column of dashes is left-aligned, dashes among numbers are right-aligned") {
  CHECK(format_table({"HOLDER", "SIZE"}, {{"-", "-"}, {"-", "2 MiB"}}) ==
        "HOLDER   SIZE\n-           -\n-       2 MiB\n");
}

TEST_CASE("Table: short rows and no rows are no error") {
  CHECK(format_table({"A", "B"}, {}) == "A  B\n");
  CHECK(format_table({"A", "B"}, {{"x"}}) == "A  B\nx\n");
}

TEST_CASE("Table: a label cannot move the cursor, UTF-8 is kept and counted by characters") {
  const std::string text = format_table({"L", "X"}, {{"\x1b[2J", "a"},
                                                     {"gr\xc3\xbc\xc3\x9f"
                                                      "e",
                                                      "b"},
                                                     {"\xc2\x9b"
                                                      "31m",
                                                      "c"}});
  CHECK(text ==
        "L      X\n?[2J   a\ngr\xc3\xbc\xc3\x9f"
        "e  b\n?31m   c\n");
}

TEST_CASE("Exit codes: every error code has the documented one") {
  CHECK(exit_code_of(ErrorCode::ok) == 0);
  CHECK(exit_code_of(ErrorCode::invalid_argument) == 2);
  CHECK(exit_code_of(ErrorCode::not_found) == 3);
  CHECK(exit_code_of(ErrorCode::lease_expired) == 3);
  CHECK(exit_code_of(ErrorCode::lease_revoked) == 3);
  CHECK(exit_code_of(ErrorCode::capacity_exhausted) == 4);
  CHECK(exit_code_of(ErrorCode::limit_exceeded) == 4);
  CHECK(exit_code_of(ErrorCode::unavailable) == 5);
  CHECK(exit_code_of(ErrorCode::permission_denied) == 6);
  CHECK(exit_code_of(ErrorCode::already_exists) == 7);
  CHECK(exit_code_of(ErrorCode::busy) == 7);
  CHECK(exit_code_of(ErrorCode::corrupt) == 8);
  for (uint16_t number = 1; number <= static_cast<uint16_t>(ErrorCode::internal); ++number) {
    CAPTURE(number);
    CHECK(exit_code_of(static_cast<ErrorCode>(number)) != exit_ok);
  }
}

TEST_CASE("Error: its JSON form carries code, exit code, message and errno") {
  const auto document =
      error_json(Error{.code = ErrorCode::not_found, .os_errno = 2, .where = "here", .detail = "no such pool"});
  CHECK(document["error"]["code"] == "not_found");
  CHECK(document["error"]["exit_code"] == 3);
  CHECK(document["error"]["message"] == "no such pool");
  CHECK(document["error"]["os_errno"] == 2);
  CHECK(document["error"]["where"] == "here");
}

TEST_CASE("Mistyped words: the nearest verb or option is named") {
  CHECK(contains(explain({"leese", "list"}), "did you mean 'lease'"));
  CHECK(contains(explain({"lease", "gramt"}), "did you mean 'grant'"));
  CHECK(contains(explain({"stauts"}), "did you mean 'status'"));
  CHECK(contains(explain({"lease", "grant", "--sise", "4M"}), "did you mean '--size'"));
  CHECK(contains(explain({"lease", "list", "--jsno"}), "did you mean '--json'"));
  CHECK(contains(explain({"frobnicate"}), "see 'terrace --help'"));
  CHECK(contains(explain({"lease", "frobnicate"}), "see 'terrace lease --help'"));
  CHECK(contains(explain({"--socket", "lease", "--jsom"}), "--json"));
}

TEST_CASE("Mistyped words: what is right is let through") {
  CHECK(explain({"status"}).empty());
  CHECK(explain({"--json", "--socket", "leese", "lease", "list"}).empty());
  CHECK(explain({"--socket=/x", "lease", "show", "anything", "at-all"}).empty());
  CHECK(explain({"lease", "revoke", "7", "--reason", "--odd", "--grace=1s"}).empty());
  CHECK(explain({"daemon", "run", "--", "--whatever"}).empty());
  CHECK(explain({}).empty());
}

TEST_CASE("did_you_mean: nothing near is nothing meant") {
  CHECK(did_you_mean("grnat", {"grant", "list"}) == "grant");
  CHECK(did_you_mean("zzz", {"grant", "list"}).empty());
  CHECK(did_you_mean("", {"grant"}).empty());
  CHECK(did_you_mean("g", {}).empty());
  CHECK(did_you_mean(std::string(100'000, 'a'), {"grant"}).empty());
}

TEST_CASE("Sizes and durations: a wrong one is a usage error with the text of parse_size") {
  Context context;
  const auto refusal = [&context](const std::vector<std::string>& words) {
    const Result<std::string> printed = build_parser(context).run(words);
    REQUIRE(!printed.ok());
    return printed.error().detail;
  };
  const std::string unreadable_size = refusal({"lease", "grant", "--size", "12Q"});
  CHECK(contains(unreadable_size, "--size: '12Q' is not a size"));
  CHECK(contains(unreadable_size, "see 'terrace lease grant --help'"));
  CHECK(contains(refusal({"lease", "grant", "--size", "12M", "--ttl", "5"}), "'5' is not a duration"));
}

TEST_CASE("Doctor: every check runs here, says something, and fixes what is not ok") {
  std::set<std::string> names;
  const std::vector<Check> checks = run_checks("/nonexistent/terraced.sock");
  for (const Check& check : checks) {
    CAPTURE(check.name);
    CHECK(names.insert(check.name).second);
    CHECK(!check.found.empty());
    CHECK(!check.meaning.empty());
    CHECK(check.fix.empty() == (check.state == CheckState::ok));
  }
  CHECK(names.contains("userfaultfd"));
  CHECK(names.contains("socket"));
  // This test runs on machines that build Terrace: the emulated service works there.
  CHECK(doctor::basic_service_possible(checks));
}

TEST_CASE("Doctor: only a missing essential makes the basic service impossible") {
  CHECK(doctor::basic_service_possible({{.name = "a", .state = CheckState::missing}}));
  CHECK(doctor::basic_service_possible({{.name = "a", .state = CheckState::limited, .essential = true}}));
  CHECK(!doctor::basic_service_possible(
      {{.name = "a"}, {.name = "b", .state = CheckState::missing, .essential = true}}));
}

TEST_CASE("Doctor: the chosen word of a sysfs line") {
  CHECK(doctor::selected_word("always within_size [never] deny") == "never");
  CHECK(doctor::selected_word("plain") == "plain");
  CHECK(doctor::selected_word("").empty());
  CHECK(doctor::selected_word("]odd[").size() > 0);
}

TEST_CASE("Daemon process: this test is not terraced, and no such process has no socket") {
  CHECK(!is_daemon_process(getpid()));
  CHECK(!is_daemon_process(0x3ffffff));
  CHECK(listening_socket_of(0x3ffffff).empty());
  CHECK(!open_process(0x3ffffff).ok());
}

TEST_CASE("Daemon start: a program that dies is reported with its last words") {
  char directory[] = "/tmp/terrace-cli-XXXXXX";
  REQUIRE(mkdtemp(directory) != nullptr);
  const std::string log = std::string(directory) + "/log";
  auto started = start_daemon({.program = "/bin/sh",
                               .arguments = {"-c", "echo state is locked; exit 3"},
                               .log_path = log,
                               .wait_ns = 10 * ns_per_s});
  REQUIRE(!started.ok());
  CHECK(started.error().code == ErrorCode::unavailable);
  CHECK(contains(started.error().detail, "exit status 3"));
  CHECK(contains(started.error().detail, "state is locked"));

  // terraced's own words for "wrong flags" and "cannot start".
  const auto code_of = [&log](const char* script) {
    const auto ended = start_daemon(
        {.program = "/bin/sh", .arguments = {"-c", script}, .log_path = log, .wait_ns = 10 * ns_per_s});
    REQUIRE(!ended.ok());
    return exit_code_of(ended.error().code);
  };
  CHECK(code_of("exit 2") == exit_usage);
  CHECK(code_of("exit 1") == exit_conflict);
  CHECK(code_of("kill -9 $$") == exit_unavailable);

  started =
      start_daemon({.program = "/bin/sleep", .arguments = {"60"}, .log_path = log, .wait_ns = 200 * ns_per_ms});
  REQUIRE(!started.ok());
  CHECK(contains(started.error().detail, "did not listen within"));

  started =
      start_daemon({.program = "/nonexistent/terraced", .arguments = {}, .log_path = log, .wait_ns = ns_per_s});
  REQUIRE(!started.ok());
  CHECK(started.error().code == ErrorCode::not_found);

  started =
      start_daemon({.program = "/bin/true", .arguments = {}, .log_path = "/nonexistent/log", .wait_ns = 1});
  REQUIRE(!started.ok());
  unlink(log.c_str());
  rmdir(directory);
}
