// SPDX-License-Identifier: Apache-2.0
// Requests to an engine through its page: carried out, refused, or not answered.
#include "cli/tier/tier_request.h"

#include <doctest/doctest.h>
#include <sys/file.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cli/tier/tier_describe.h"
#include "core/base/clock.h"
#include "core/base/units.h"
#include "tests/support/tier_page_file.h"

using namespace terrace;
using namespace terrace::cli;
using layout::TierAnswer;
using layout::TierRange;
using layout::TierState;
using test::TierPageMaker;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A page with one range, and who answers for its engine on a thread of its own.
struct Engine {
  Engine() {
    char name[] = "/tmp/terrace-tier-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root = name;
    places.prefix = root + "/pages-";
    places.uid = ::geteuid();
    maker = std::make_unique<TierPageMaker>(places.prefix);
    maker->add(0, "heap", 8);
    answerer = std::make_unique<test::TierAnswerer>(*maker);
  }
  ~Engine() {
    over = true;
    if (thread.joinable()) thread.join();
    maker.reset();
    const int failed = std::system(("rm -rf " + root).c_str());
    CHECK(failed == 0);
  }
  void answer() {
    thread = std::thread([this] {
      while (!over) {
        answerer->round();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  Status ask(const TierRequest& request, uint64_t wait_ns = 5 * ns_per_s) {
    const TierScan scan = scan_tier_pages(places);
    REQUIRE(scan.pages.size() == 1);
    REQUIRE(scan.pages[0].ranges.size() == 1);
    return ask_tier_engine(places, scan.pages[0], scan.pages[0].ranges[0], request, wait_ns);
  }
  TierRange& range() { return maker->range(0); }

  std::string root;
  TierPlaces places;
  std::unique_ptr<TierPageMaker> maker;
  std::unique_ptr<test::TierAnswerer> answerer;
  std::thread thread;
  std::atomic<bool> over{false};
};

}  // namespace

TEST_CASE("Tier request: what is asked for is what the engine reads, and nothing else changes") {
  Engine engine;
  engine.answer();
  const std::string policy = engine.range().policy;
  TierRequest request;
  request.ddr_bytes_max = 4 * mib;
  REQUIRE(engine.ask(request).ok());
  CHECK(engine.range().ddr_bytes_max == 4 * mib);
  CHECK(engine.range().copy_bytes_per_s_max == 2 * gib);
  CHECK(engine.range().policy == policy);
  request = {};
  request.policy = "static";
  request.copy_bytes_per_s_max = 0;
  REQUIRE(engine.ask(request).ok());
  CHECK(engine.range().ddr_bytes_max == 4 * mib);
  CHECK(engine.range().copy_bytes_per_s_max == 0);
  CHECK(std::string(engine.range().policy) == "static");
  CHECK(engine.range().request == 2);
}

TEST_CASE("Tier request: pause and resume, and other requests leave a paused range paused") {
  Engine engine;
  engine.answer();
  TierRequest pause, resume, other;
  pause.paused = true;
  resume.paused = false;
  other.policy = "static";
  REQUIRE(engine.ask(pause).ok());
  CHECK(engine.range().state == static_cast<uint32_t>(TierState::paused));
  REQUIRE(engine.ask(other).ok());
  CHECK(engine.range().state == static_cast<uint32_t>(TierState::paused));
  REQUIRE(engine.ask(resume).ok());
  CHECK(engine.range().state == static_cast<uint32_t>(TierState::running));
}

TEST_CASE("Tier request: the engine's refusals are told with what to do") {
  Engine engine;
  engine.answer();
  TierRequest request;
  request.policy = "newest";
  request.ddr_bytes_max = 64 * gib;
  engine.answerer->answer_with = TierAnswer::unknown_policy;
  Status refused = engine.ask(request);
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(contains(refused.error().detail, "no policy 'newest'"));
  engine.answerer->answer_with = TierAnswer::bad_value;
  refused = engine.ask(request);
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(contains(refused.error().detail, "64 GiB of DDR"));
  CHECK(contains(refused.error().detail, "16 MiB"));
  engine.range().state = static_cast<uint32_t>(TierState::no_uffd);
  engine.answerer->answer_with = TierAnswer::refused;
  refused = engine.ask(request);
  CHECK(refused.error().code == ErrorCode::unsupported);
  CHECK(contains(refused.error().detail, "userfaultfd"));
  engine.answerer->raw_answer = 77;
  refused = engine.ask(request);
  CHECK(refused.error().code == ErrorCode::corrupt);
  CHECK(contains(refused.error().detail, "77"));
}

TEST_CASE("Tier request: an engine that makes no rounds is given up in time, and does it when it comes round") {
  Engine engine;
  TierRequest request;
  request.paused = true;
  const SystemClock clock;
  const uint64_t began_ns = clock.now_ns();
  const Status refused = engine.ask(request, 100 * ns_per_ms);
  CHECK(clock.now_ns() - began_ns < 5 * ns_per_s);
  CHECK(refused.error().code == ErrorCode::unavailable);
  CHECK(contains(refused.error().detail, "100 ms"));
  engine.answerer->round();
  CHECK(engine.range().state == static_cast<uint32_t>(TierState::paused));
  // The next one has a number of its own.
  engine.answer();
  request.paused = false;
  REQUIRE(engine.ask(request).ok());
  CHECK(engine.range().request == 2);
}

TEST_CASE("Tier request: commands take turns, and one that never ends does not hold up others for ever") {
  Engine engine;
  engine.answer();
  const UniqueFd other(::open(engine.maker->path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::flock(other.get(), LOCK_EX) == 0);
  TierRequest request;
  request.paused = true;
  const Status busy = engine.ask(request, 50 * ns_per_ms);
  CHECK(busy.error().code == ErrorCode::busy);
  CHECK(engine.range().request == 0);
  REQUIRE(::flock(other.get(), LOCK_UN) == 0);
  CHECK(engine.ask(request).ok());
}

TEST_CASE("Tier request: a range whose place another one has taken is not changed") {
  Engine engine;
  engine.answer();
  const TierScan scan = scan_tier_pages(engine.places);
  engine.maker->add(0, "another", 8);
  TierRequest request;
  request.paused = true;
  const Status refused =
      ask_tier_engine(engine.places, scan.pages[0], scan.pages[0].ranges[0], request, 5 * ns_per_s);
  CHECK(refused.error().code == ErrorCode::not_found);
  CHECK(engine.range().request == 0);
}

TEST_CASE("Tier request: a policy that there is not is refused before anybody is asked, with what was meant") {
  CHECK(check_policy("static").ok());
  const Status refused = check_policy("statc");
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(contains(refused.error().detail, "did you mean 'static'?"));
  CHECK(contains(check_policy("zzzzzzzzz").error().detail, "there are "));
}

TEST_CASE("Tier states: each is explained, and those that can be fixed say how") {
  TierRangeView range;
  for (const TierState state :
       {TierState::running, TierState::paused, TierState::no_uffd, TierState::stopped, TierState::forked}) {
    range.state = state;
    range.reason = "because";
    const StateWords words = explain_state(range);
    CHECK(!words.text.empty());
    const bool wrong = state == TierState::no_uffd || state == TierState::stopped;
    CHECK(words.fix.empty() == !wrong);
    CHECK(contains(words.text, "because") == (wrong || state == TierState::forked));
  }
}
