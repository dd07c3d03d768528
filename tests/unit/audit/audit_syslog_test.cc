// SPDX-License-Identifier: Apache-2.0
// The copy of the audit log that goes to the machine's logging service.
#include <doctest/doctest.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/base/unique_fd.h"
#include "daemon/audit/audit_journal.h"
#include "daemon/audit/audit_syslog.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

// A logging service: a datagram socket with a name.
class LogService {
 public:
  explicit LogService(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ::unlink(path.c_str());
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  }
  // The next message; none within two seconds: "".
  std::string next() {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, 2000) != 1) return "";
    std::string message(64 * 1024, '\0');
    const ssize_t bytes = ::recv(socket_.get(), message.data(), message.size(), 0);
    message.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    return message;
  }

 private:
  UniqueFd socket_;
};

struct SyslogFolder {
  SyslogFolder() {
    char name[] = "/tmp/terrace-syslog-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~SyslogFolder() { std::filesystem::remove_all(path); }
  std::string socket() const { return path + "/log"; }
  std::string path;
};

std::vector<AuditRow> entries(const std::string& verb, size_t count = 1,
                              const std::string& actor = "uid 1 (a[2])") {
  std::vector<AuditRow> all;
  for (size_t i = 0; i < count; ++i)
    all.push_back(AuditRow{0, 7, actor, "t", verb, "lease " + std::to_string(i), ""});
  return all;
}

bool is(const std::string& message, const char* begin, const std::string& end) {
  return message.starts_with(begin) && message.ends_with(end);
}

}  // namespace

TEST_CASE("AuditSyslog: a message for each entry, louder for what was denied") {
  const SyslogFolder folder;
  LogService service(folder.socket());
  AuditSyslog log({.socket = folder.socket()});
  log.append(entries("grant"));
  log.append(entries("denied grant"));
  log.append(entries("grant", 1, "\"verb\": \"denied x"));  // a tenant's program may call itself what it likes
  const std::string granted = service.next(), denied = service.next(), odd = service.next();
  CHECK(granted.find("terraced-audit[" + std::to_string(::getpid()) + "]: {\"time_ns\": 7, ") !=
        std::string::npos);
  CHECK(is(granted, "<86>", "\"verb\": \"grant\", \"subject\": \"lease 0\", \"detail\": \"\"}"));
  CHECK(is(denied, "<85>", "\"verb\": \"denied grant\", \"subject\": \"lease 0\", \"detail\": \"\"}"));
  CHECK(odd.starts_with("<86>"));
}

TEST_CASE("AuditSyslog: entries wait for a service that is away, in their order") {
  const SyslogFolder folder;
  AuditSyslog log({.socket = folder.socket(), .retry_ms = 20});
  log.append(entries("grant", 3));
  ::usleep(100'000);
  std::optional<LogService> service(folder.socket());
  for (int i = 0; i < 3; ++i)
    CHECK(service->next().find("\"lease " + std::to_string(i) + "\"") != std::string::npos);
  service.emplace(folder.socket());  // started anew
  log.append(entries("release"));
  CHECK(service->next().find("\"release\"") != std::string::npos);
}

TEST_CASE("AuditJournal: an entry has its fields, and what somebody calls himself begins none") {
  const SyslogFolder folder;
  LogService service(folder.socket());
  AuditJournal log({.socket = folder.socket(), .entry = "an entry", .entries = "entries"});
  log.append({AuditRow{0, 7, "uid 1 (a[2])", "training", "revoke", "lease 12", "maintenance"}});
  log.append({AuditRow{0, 8, "uid 1 (a\nTERRACE_LEASE=1)", "", "denied admin", "", "no\nright"}});
  log.append({AuditRow{0, 9, "", "", "pool compact", "pool main", ""}});
  const std::string revoked = service.next(), denied = service.next(), compacted = service.next();
  CHECK(revoked ==
        "MESSAGE=uid 1 (a[2]): revoke: lease 12 (maintenance)\nPRIORITY=6\nSYSLOG_FACILITY=10\n"
        "SYSLOG_IDENTIFIER=terraced-audit\nTERRACE_ACTOR=uid 1 (a[2])\nTERRACE_TENANT=training\n"
        "TERRACE_VERB=revoke\nTERRACE_SUBJECT=lease 12\nTERRACE_LEASE=12\nTERRACE_DETAIL=maintenance\n"
        "TERRACE_TIME_NS=7\n");
  CHECK(denied.find("PRIORITY=5\n") != std::string::npos);
  // The long form: its length, not its line feed, says where the value ends.
  const std::string actor = "uid 1 (a\nTERRACE_LEASE=1)";
  CHECK(denied.find("TERRACE_ACTOR\n" + std::string(1, static_cast<char>(actor.size())) + std::string(7, '\0') +
                    actor + "\n") != std::string::npos);
  CHECK(denied.find("TERRACE_TENANT") == std::string::npos);
  CHECK(compacted.find("MESSAGE=the manager: pool compact: pool main\n") != std::string::npos);
  CHECK(compacted.find("TERRACE_POOL=main\n") != std::string::npos);
}

TEST_CASE("AuditSyslog: a service that takes nothing holds up nobody for long") {
  const SyslogFolder folder;
  LogService service(folder.socket());
  {
    AuditSyslog log({.socket = folder.socket(), .waiting_bytes_max = 4096, .retry_ms = 10});
    for (int i = 0; i < 2000; ++i) log.append(entries("grant"));
    ::usleep(50'000);
  }  // ends, although not all could be written
  CHECK_FALSE(service.next().empty());
}
