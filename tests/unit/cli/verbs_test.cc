// SPDX-License-Identifier: Apache-2.0
// Small decisions of single verbs: new sizes, moments, findings, consent.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <time.h>

#include <nlohmann/json.hpp>

#include "cli/show/describe.h"
#include "cli/terminal/confirm.h"
#include "cli/terminal/local_time.h"
#include "cli/verbs/fsck.h"
#include "cli/verbs/lease_verbs.h"
#include "core/base/clock.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Local time is that of one zone while it lives.
class InZone {
 public:
  explicit InZone(const char* zone) {
    if (const char* before = getenv("TZ"); before != nullptr) before_ = before;
    setenv("TZ", zone, 1);
    tzset();
  }
  ~InZone() {
    before_.empty() ? unsetenv("TZ") : setenv("TZ", before_.c_str(), 1);
    tzset();
  }

 private:
  std::string before_;
};

FindingStatus finding(const char* severity, const char* subject, const char* what, const char* repair = "") {
  return FindingStatus().changed([&](rpc::Finding::Builder out) {
    out.setSeverity(severity);
    out.setSubject(subject);
    out.setWhat(what);
    out.setRepair(repair);
  });
}

constexpr uint64_t noon_ns = 1'763'726'400 * ns_per_s;  // 2025-11-21 12:00:00 UTC

}  // namespace

TEST_CASE("New size: absolute, more and less") {
  CHECK(*parse_new_size("512M", 64 * mib) == 512 * mib);
  CHECK(*parse_new_size("+64M", 64 * mib) == 128 * mib);
  CHECK(*parse_new_size("-16M", 64 * mib) == 48 * mib);
  CHECK(*parse_new_size("+0", 64 * mib) == 64 * mib);
}

TEST_CASE("New size: nothing left, nonsense and overflow are refused or too large to be had") {
  for (const char* wrong : {"-64M", "-1G", "0", "", "+", "-", "+-4M", "12Q"}) {
    CAPTURE(wrong);
    const auto refused = parse_new_size(wrong, 64 * mib);
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::invalid_argument);
  }
  CHECK(*parse_new_size("+8000000T", UINT64_MAX / 2 - 1) == UINT64_MAX / 2);
}

TEST_CASE("Moments: durations ago, hours of today, days, and UTC") {
  const InZone zone("UTC-2");  // two hours ahead of UTC
  CHECK(*parse_moment("2h", noon_ns) == noon_ns - 7200 * ns_per_s);
  CHECK(*parse_moment("13:30", noon_ns) == noon_ns - 1800 * ns_per_s);
  CHECK(*parse_moment("13:30:05", noon_ns) == noon_ns - 1795 * ns_per_s);
  CHECK(*parse_moment("2025-11-21", noon_ns) == noon_ns - 14 * 3600 * ns_per_s);
  CHECK(*parse_moment("2025-11-21 14:00", noon_ns) == noon_ns);
  CHECK(*parse_moment("2025-11-21T14:00:00", noon_ns) == noon_ns);
  CHECK(*parse_moment("2025-11-21T12:00:00Z", noon_ns) == noon_ns);
  CHECK(*parse_moment("30000d", noon_ns) == 0);
  CHECK(format_moment(noon_ns) == "2025-11-21 14:00:00");
}

TEST_CASE("Moments: days and hours that there are not are refused") {
  for (const char* wrong :
       {"", "yesterday", "2025-02-31", "2025-13-01", "25:00", "12:60", "5", "2025-11-21 12"}) {
    CAPTURE(wrong);
    const auto refused = parse_moment(wrong, noon_ns);
    REQUIRE(!refused.ok());
    CHECK(contains(refused.error().detail, "2026-11-21"));
  }
}

TEST_CASE("Findings: grouped by severity, worst first, each with what fixes it") {
  const std::vector<FindingStatus> findings = {finding("note", "emu:b", "absent"), finding("strange", "x", "y"),
                                               finding("error", "lease 7", "no object", "release it")};
  const std::string text = findings_text(findings);
  CHECK(text ==
        "1 error\n  lease 7: no object\n    fix: release it\n1 note\n  emu:b: absent\n1 other\n  x: y\n");
  CHECK(needs_repair(findings));
  CHECK(!needs_repair({finding("note", "", "")}));
  CHECK(needs_repair({finding("warning", "", "")}));
  CHECK(needs_repair({finding("fatal", "", "")}));
  CHECK(contains(findings_text({}), "clean"));
}

TEST_CASE("Findings: what terraced prints is read, anything else refused") {
  const auto read =
      parse_findings(R"({"findings": [{"severity": "error", "subject": "s", "what": "w", "n": 3}]})");
  REQUIRE(read.ok());
  REQUIRE(read->size() == 1);
  CHECK(str((*read)[0]->getWhat()) == "w");
  CHECK((*read)[0]->getRepair().size() == 0);
  CHECK(parse_findings(R"({"findings": []})")->empty());
  for (const char* wrong : {"", "{}", "[]", R"({"findings": 3})", R"({"findings": [3]})", "{"}) {
    CAPTURE(wrong);
    CHECK(!parse_findings(wrong).ok());
  }
}

TEST_CASE("Consent: --yes asks nobody, and without anybody to ask it is refused with the way out") {
  Context context;
  CHECK(confirm(context, true, "", "Sure?").ok());
  context.json = true;
  const Status refused = confirm(context, false, "", "Sure?");
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(contains(refused.error().detail, "--yes"));
}

TEST_CASE("Pace: it ends, and not before its time") {
  Pace none(0);
  CHECK(!none.again());
  const uint64_t begin_ns = SystemClock().now_ns();
  Pace some(60 * ns_per_ms);
  int times = 0;
  while (some.again()) ++times;
  CHECK(SystemClock().now_ns() - begin_ns >= 60 * ns_per_ms);
  CHECK(times >= 1);
  CHECK(times <= 4);
}
