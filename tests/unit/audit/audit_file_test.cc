// SPDX-License-Identifier: Apache-2.0
// The copy of the audit log that no tenant can wash away.
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "daemon/audit/audit_file.h"
#include "tests/support/eventually.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/terrace-audit-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file() const { return path + "/audit.jsonl"; }
  std::string path;
};

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<AuditRow> rows(const std::string& verb, size_t count = 1) {
  return std::vector<AuditRow>(count, AuditRow{0, 7, "uid 1 (a[2])", "t", verb, "lease 3", ""});
}

}  // namespace

TEST_CASE("AuditFile: a line for each entry, in a file for its owner alone") {
  const Folder folder;
  AuditRow odd = rows("grant")[0];
  odd.detail = "a \"b\" \\ \n";
  {
    AuditFile file({.path = folder.file()});
    file.append({odd});
    file.append(rows("release", 2));
  }
  const std::string text = content(folder.file());
  CHECK(text.find("{\"time_ns\": 7, \"actor\": \"uid 1 (a[2])\", \"tenant\": \"t\", \"verb\": \"grant\", "
                  "\"subject\": \"lease 3\", \"detail\": \"a \\\"b\\\" \\\\ \\u000a\"}\n") == 0);
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  struct stat status {};
  REQUIRE(::stat(folder.file().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("AuditFile: it goes on behind what is there, and full files are kept beside it") {
  const Folder folder;
  const size_t line = audit_line(rows("grant")[0]).size();
  for (int run = 0; run < 5; ++run) {
    AuditFile file({.path = folder.file(), .rotate_bytes = 4 * line});
    file.append(rows("grant", 2));
  }
  CHECK(content(folder.file()).size() == 2 * line);
  CHECK(content(folder.file() + ".0001").size() == 4 * line);
  CHECK(content(folder.file() + ".0002").size() == 4 * line);
}

TEST_CASE("AuditFile: one that was renamed away is made anew") {
  const Folder folder;
  AuditFile file({.path = folder.file()});
  file.append(rows("first"));
  REQUIRE(test::eventually([&] { return !content(folder.file()).empty(); }));
  std::filesystem::rename(folder.file(), folder.path + "/old");
  file.append(rows("second"));
  REQUIRE(test::eventually([&] { return content(folder.file()).find("second") != std::string::npos; }));
  CHECK(content(folder.path + "/old").find("second") == std::string::npos);
}

TEST_CASE("AuditFile: what cannot be written holds nobody up, and is there once it can") {
  const Folder folder;
  const std::string inner = folder.path + "/inner";
  AuditFile file({.path = inner + "/audit.jsonl", .waiting_bytes_max = 1 << 20, .retry_ms = 10});
  for (int n = 0; n < 100; ++n) file.append(rows("early", 10));
  std::filesystem::create_directory(inner);
  REQUIRE(test::eventually([&] {
    const std::string text = content(inner + "/audit.jsonl");
    return std::count(text.begin(), text.end(), '\n') == 1000;
  }));
  file.append(rows("late"));
  CHECK(test::eventually([&] { return content(inner + "/audit.jsonl").find("late") != std::string::npos; }));
}
