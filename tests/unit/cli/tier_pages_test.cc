// SPDX-License-Identifier: Apache-2.0
// Tier pages read as strangers' files: whatever they hold, what comes out is safe and true, or a clear refusal.
#include "cli/tier/tier_pages.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/tier/tier_describe.h"
#include "cli/tier/tier_map.h"
#include "cli/tier/tier_request.h"
#include "core/base/prng.h"
#include "core/base/units.h"
#include "tests/support/tier_page_file.h"

using namespace terrace;
using namespace terrace::cli;
using layout::TierRange;
using layout::TierState;
using test::TierPageMaker;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A place of its own for pages, of this user only.
struct Place {
  Place() {
    char name[] = "/tmp/terrace-tier-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root = name;
    places.prefix = root + "/pages-";
    places.uid = ::geteuid();
  }
  ~Place() {
    const int failed = std::system(("rm -rf " + root).c_str());
    CHECK(failed == 0);
  }
  std::string own() const { return places.prefix + std::to_string(::geteuid()); }
  void file(const std::string& name, const std::string& content) const {
    ::mkdir(own().c_str(), 0700);
    std::ofstream(own() + "/" + name) << content;
  }
  bool has(const std::string& name) const { return ::access((own() + "/" + name).c_str(), F_OK) == 0; }
  TierScan scan() const { return scan_tier_pages(places); }
  // The only problem that a scan finds, and no page.
  std::string problem() const {
    const TierScan scan = this->scan();
    CHECK(scan.pages.empty());
    REQUIRE(scan.problems.size() == 1);
    return scan.problems[0];
  }
  TierPageView page() const {
    TierScan scan = this->scan();
    REQUIRE(scan.pages.size() == 1);
    return scan.pages[0];
  }

  std::string root;
  TierPlaces places;
};

std::string own_pid() {
  return std::to_string(::getpid());
}

// A child that does nothing until it is killed, and its end.
struct Child {
  Child() : pid(::fork()) {
    if (pid == 0) {
      for (;;) ::pause();
    }
  }
  ~Child() { end(); }
  void end() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = 0;
  }
  pid_t pid;
};

}  // namespace

TEST_CASE("Tier pages: what a process tells is shown") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  TierRange& range = maker.add(3, "heap", 8);
  range.promotions = 5;
  const TierPageView page = place.page();
  CHECK(page.pid == ::getpid());
  CHECK(page.uid == ::geteuid());
  CHECK(page.program == test::name_of(::getpid()));
  REQUIRE(page.ranges.size() == 1);
  CHECK(page.ranges[0].index == 3);
  CHECK(page.ranges[0].name == "heap");
  CHECK(page.ranges[0].policy == "benefit-density");
  CHECK(page.ranges[0].numbers.promotions == 5);
  REQUIRE(page.ranges[0].has_cells);
  const auto file = open_tier_page(place.places, page, TierAccess::read);
  REQUIRE(file.ok());
  const auto cells = file->cells(page.ranges[0]);
  REQUIRE(cells.ok());
  CHECK(*cells == std::vector<uint8_t>{TierPageMaker::cell(1, 7), TierPageMaker::cell(1, 7),
                                       TierPageMaker::cell(2, 0), TierPageMaker::cell(2, 2),
                                       TierPageMaker::cell(2, 0), TierPageMaker::cell(2, 0),
                                       TierPageMaker::cell(2, 2), TierPageMaker::cell(2, 0)});
}

TEST_CASE("Tier pages: no directory is no page and no problem") {
  const Place place;
  CHECK(place.scan().pages.empty());
  CHECK(place.scan().problems.empty());
}

TEST_CASE("Tier pages: root sees every user's, and a directory of another owner is left out") {
  Place place;
  place.places.uid.reset();
  TierPageMaker maker(place.places.prefix);
  maker.add(0, "heap", 4);
  // Made by this user in the name of another one.
  const std::string squatted = place.places.prefix + std::to_string(::geteuid() + 1);
  REQUIRE(::mkdir(squatted.c_str(), 0700) == 0);
  const TierScan scan = place.scan();
  CHECK(scan.pages.size() == 1);
  REQUIRE(scan.problems.size() == 1);
  CHECK(contains(scan.problems[0], squatted));
}

TEST_CASE("Tier pages: a directory that others may write to is left out, and so is a link in its place") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  maker.add(0, "heap", 4);
  REQUIRE(::chmod(place.own().c_str(), 0722) == 0);
  CHECK(contains(place.problem(), "alone"));
  REQUIRE(::chmod(place.own().c_str(), 0700) == 0);
  const std::string moved = place.root + "/elsewhere";
  REQUIRE(::rename(place.own().c_str(), moved.c_str()) == 0);
  REQUIRE(::symlink(moved.c_str(), place.own().c_str()) == 0);
  CHECK(contains(place.problem(), "no directory"));
  ::unlink(place.own().c_str());
  ::rename(moved.c_str(), place.own().c_str());
}

TEST_CASE("Tier pages: the file of a process that is gone is removed, whatever it holds") {
  Place place;
  Child child;
  const std::string name = std::to_string(child.pid);
  {
    TierPageMaker maker(place.places.prefix, child.pid);
    maker.add(0, "heap", 4);
    CHECK(place.page().pid == child.pid);
    child.end();
    const TierScan scan = place.scan();
    CHECK(scan.pages.empty());
    CHECK(scan.problems.empty());
    CHECK(scan.swept == 1);
  }
  CHECK_FALSE(place.has(name));
  place.file(name, "rubbish");
  CHECK(place.scan().swept == 1);
  CHECK_FALSE(place.has(name));
}

TEST_CASE("Tier pages: a number that another process has now is not taken for the one that made the page") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  maker.add(0, "heap", 4);
  maker.page->start_ticks += 1;
  CHECK(place.scan().swept == 1);
  CHECK_FALSE(place.has(own_pid()));
}

TEST_CASE("Tier pages: what an exec left behind is no page of the program that runs now") {
  Place place;
  Child child;  // has no mapping of the page that is made in its name, and another name than it says
  TierPageMaker maker(place.places.prefix, child.pid);
  maker.add(0, "heap", 4);
  std::snprintf(maker.page->program, sizeof maker.page->program, "before");
  CHECK(place.scan().swept == 1);
  // One that only calls itself otherwise has it mapped still.
  TierPageMaker renamed(place.places.prefix);
  renamed.add(0, "heap", 4);
  std::snprintf(renamed.page->program, sizeof renamed.page->program, "before");
  CHECK(place.page().program == "before");
}

TEST_CASE("Tier pages: a page that is being made is passed over in silence") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  maker.page->magic = 0;
  const TierScan scan = place.scan();
  CHECK(scan.pages.empty());
  CHECK(scan.problems.empty());
  CHECK(place.has(own_pid()));
}

TEST_CASE("Tier pages: files that are none are refused with their reason, and stay") {
  Place place;
  const std::string name = own_pid();
  SUBCASE("too short") {
    place.file(name, "x");
    CHECK(contains(place.problem(), "too short"));
  }
  SUBCASE("empty") {
    place.file(name, "");
    CHECK(contains(place.problem(), "too short"));
  }
  SUBCASE("other bytes") {
    place.file(name, std::string(layout::tier_cells_offset, 'x'));
    CHECK(contains(place.problem(), "no tier page"));
  }
  SUBCASE("another version") {
    const TierPageMaker maker(place.places.prefix);
    maker.page->version = 2;
    CHECK(contains(place.problem(), "version 2"));
    CHECK(place.has(name));
  }
  SUBCASE("of another process") {
    const TierPageMaker maker(place.places.prefix);
    maker.page->pid = 1;
    CHECK(contains(place.problem(), "process 1's"));
  }
  SUBCASE("a link") {
    const TierPageMaker maker(place.places.prefix);
    REQUIRE(::unlink(maker.path.c_str()) == 0);
    REQUIRE(::symlink("/etc/passwd", maker.path.c_str()) == 0);
    CHECK(contains(place.problem(), "symbolic link"));
  }
  SUBCASE("two names") {
    const TierPageMaker maker(place.places.prefix);
    REQUIRE(::link(maker.path.c_str(), (place.root + "/second").c_str()) == 0);
    CHECK(contains(place.problem(), "no ordinary file"));
  }
  SUBCASE("a pipe, which must not be waited for") {
    ::mkdir(place.own().c_str(), 0700);
    REQUIRE(::mkfifo((place.own() + "/" + name).c_str(), 0600) == 0);
    CHECK(contains(place.problem(), "no ordinary file"));
  }
  SUBCASE("a directory") {
    ::mkdir(place.own().c_str(), 0700);
    ::mkdir((place.own() + "/" + name).c_str(), 0700);
    CHECK(contains(place.problem(), "no ordinary file"));
  }
}

TEST_CASE("Tier pages: names that are no process's are refused") {
  for (const char* name : {"x", "0", "-1", "01", "99999999999", "1e3"}) {
    CAPTURE(name);
    Place place;
    place.file(name, "x");
    CHECK(contains(place.problem(), "not named as a process"));
  }
}

TEST_CASE("Tier pages: numbers that cannot be cost their range, or its map, and nothing else") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  maker.add(0, "good", 4);
  TierRange& bad = maker.add(1, "bad", 4);
  const auto refused = [&] {
    const TierPageView page = place.page();
    REQUIRE(page.ranges.size() == 1);
    CHECK(page.ranges[0].name == "good");
    REQUIRE(page.problems.size() == 1);
    return page.problems[0];
  };
  const auto without_map = [&] {
    const TierPageView page = place.page();
    REQUIRE(page.ranges.size() == 2);
    CHECK_FALSE(page.ranges[1].has_cells);
    CHECK(page.ranges[0].has_cells);
    CHECK(page.problems.size() == 1);
  };
  SUBCASE("state") {
    bad.state = 99;
    CHECK(contains(refused(), "state"));
  }
  SUBCASE("granules too small") {
    bad.granule_bytes_log2 = 3;
    refused();
  }
  SUBCASE("granules beyond what a shift can do") {
    bad.granule_bytes_log2 = 200;
    refused();
  }
  SUBCASE("no bytes") {
    bad.bytes = 0;
    refused();
  }
  SUBCASE("half a granule") {
    bad.bytes += 1;
    refused();
  }
  SUBCASE("over the end of all addresses") {
    bad.base = UINT64_MAX - 4096;
    refused();
  }
  SUBCASE("cells behind the end") {
    bad.cells_offset = TierPageMaker::file_bytes;
    without_map();
  }
  SUBCASE("cells that wrap around") {
    bad.cells_offset = UINT64_MAX - 1;
    without_map();
  }
  SUBCASE("cells over the header") {
    bad.cells_offset = 0;
    without_map();
  }
  SUBCASE("too many cells") {
    bad.cell_count = UINT64_MAX;
    without_map();
  }
  SUBCASE("no cells") {
    bad.cell_count = 0;
    without_map();
  }
  SUBCASE("cells that stand for nothing") {
    bad.granules_per_cell = 0;
    without_map();
  }
  SUBCASE("cells that stand for more than there is") {
    bad.granules_per_cell = uint64_t{1} << 63;
    without_map();
  }
  SUBCASE("a file that says it is shorter") {
    maker.page->file_bytes = 100;
    CHECK(place.page().problems.size() == 2);
    for (const TierRangeView& range : place.page().ranges) CHECK_FALSE(range.has_cells);
  }
}

TEST_CASE("Tier pages: more ranges than there can be are counted as a problem and not looked for") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  maker.add(15, "last", 4);
  maker.page->range_count = 65535;
  const TierPageView page = place.page();
  CHECK(page.ranges.size() == 1);
  REQUIRE(page.problems.size() == 1);
  CHECK(contains(page.problems[0], "65535"));
}

TEST_CASE("Tier pages: texts without an end, and texts that would move a cursor, are cut and made harmless") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  TierRange& range = maker.add(0, "heap", 4);
  std::memset(range.name, 'n', sizeof range.name);
  std::memset(range.policy, 'p', sizeof range.policy);
  std::memset(range.reason, '\x1b', sizeof range.reason);
  const TierPageView page = place.page();
  CHECK(page.ranges[0].name == std::string(64, 'n'));
  CHECK(page.ranges[0].policy == std::string(32, 'p'));
  CHECK(page.ranges[0].reason == std::string(64, '?'));
  CHECK_FALSE(contains(tier_block(page), "\x1b"));
  std::snprintf(range.name, sizeof range.name, "a\x9b\xff\nb");
  CHECK(place.page().ranges[0].name == "a???b");
}

TEST_CASE("Tier pages: a file that is cut short while it is read is an error, never a signal") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  maker.add(0, "heap", 4);
  const TierPageView page = place.page();
  auto file = open_tier_page(place.places, page, TierAccess::write);
  REQUIRE(file.ok());
  REQUIRE(::truncate(maker.path.c_str(), 0) == 0);
  CHECK(file->read().error().code == ErrorCode::corrupt);
  CHECK(file->cells(page.ranges[0]).error().code == ErrorCode::corrupt);
  CHECK(file->load(0, offsetof(TierRange, applied)).error().code == ErrorCode::corrupt);
  CHECK(file->store(0, offsetof(TierRange, request), 1).error().code == ErrorCode::corrupt);
  REQUIRE(::truncate(maker.path.c_str(), TierPageMaker::file_bytes) == 0);
}

TEST_CASE("Tier pages: numbers that overflow are shown, and break nothing") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  TierRange& range = maker.add(0, "heap", 4);
  std::memset(&range.ddr_bytes, 0xff, offsetof(TierRange, request) - offsetof(TierRange, ddr_bytes));
  const TierPageView page = place.page();
  CHECK(!tier_block(page).empty());
  CHECK(!tier_table({page}).empty());
  CHECK(contains(tier_block(page), "not known"));  // a share of more than 1000 per mille is none
  TierRates rates;
  rates.table({page}, 1);
  std::memset(&range.ddr_bytes, 0, offsetof(TierRange, request) - offsetof(TierRange, ddr_bytes));
  CHECK(!rates.table({place.page()}, 2).empty());
  std::memset(&range.ddr_bytes, 0xff, offsetof(TierRange, request) - offsetof(TierRange, ddr_bytes));
  CHECK(!rates.table({place.page()}, 3).empty());
}

namespace {

// Everything that is made of a page for people and programs.
void use_all_of(const TierPageFile& file, TierRates& rates, uint64_t now_ns) {
  const auto page = file.read();
  if (!page.ok()) return;
  CHECK_FALSE(contains(tier_block(*page) + tier_table({*page}) + rates.table({*page}, now_ns), "\x1b"));
  CHECK(to_json(*page).at("ranges").size() == page->ranges.size());
  for (const TierRangeView& range : page->ranges) {
    if (!range.has_cells || range.numbers.cell_count > 4096) continue;
    const auto cells = file.cells(range);
    if (!cells.ok()) continue;
    const TierMap map = make_tier_map(page->title(), range, *cells, 64, 32);
    CHECK(!tier_map_text(map, 64, true).empty());
    CHECK(!tier_map_svg(map, 64).empty());
    CHECK(map.blocks.size() <= 64u * 32u);
  }
}

}  // namespace

TEST_CASE("Tier pages: whatever bytes a page holds, what is made of it is safe") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  const uint32_t used[] = {0, 5, 10, layout::tier_ranges_max - 1};
  for (const uint32_t i : used) maker.add(i, "heap", 8 + i);
  std::vector<char> good(layout::tier_cells_offset);
  char* bytes = reinterpret_cast<char*>(maker.page);
  std::memcpy(good.data(), bytes, good.size());
  const UniqueFd directory(::open(maker.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Prng random(20'251'121);
  TierRates rates;
  size_t read = 0;
  for (uint64_t round = 1; round <= 3000; ++round) {
    std::memcpy(bytes, good.data(), good.size());
    // Some words of the ranges, of what edges are made of; now and then of the header.
    const uint64_t words = 1 + random.below(12);
    for (uint64_t i = 0; i < words; ++i) {
      const bool header = random.below(16) == 0;
      // Mostly where a range is: elsewhere it takes many edges to make one.
      const uint64_t slot =
          random.below(4) == 0 ? random.below(layout::tier_ranges_max) : used[random.below(std::size(used))];
      const uint64_t at = header ? 1 + random.below(12)
                                 : (layout::tier_ranges_offset + slot * sizeof(TierRange)) / 8 +
                                       random.below(sizeof(TierRange) / 8);
      const uint64_t edges[] = {0,
                                1,
                                UINT64_MAX,
                                uint64_t{1} << 63,
                                21,
                                TierPageMaker::file_bytes,
                                random.next(),
                                random.next() & 0xff};
      std::memcpy(bytes + 8 * at, &edges[random.below(std::size(edges))], 8);
    }
    const auto file =
        TierPageFile::open(directory.get(), maker.directory, own_pid(), ::geteuid(), TierAccess::read);
    if (!file.ok()) continue;
    ++read;
    use_all_of(*file, rates, round);
  }
  CHECK(read > 1000);  // or the damage is such that nothing was tried
}

TEST_CASE("Tier pages: a process that changes its page all the time, its length too, ends nobody") {
  Place place;
  TierPageMaker maker(place.places.prefix);
  maker.add(0, "heap", 512);
  const UniqueFd directory(::open(maker.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd file_of_maker(::open(maker.path.c_str(), O_RDWR | O_CLOEXEC));
  std::vector<char> good(layout::tier_cells_offset);
  std::memcpy(good.data(), maker.page, good.size());
  std::atomic<bool> over{false};
  std::thread changer([&] {
    Prng random(7);
    const off_t lengths[] = {0, 100, 4096, 9000, layout::tier_cells_offset, layout::tier_cells_offset + 100};
    while (!over) {
      if (::ftruncate(file_of_maker.get(), lengths[random.below(std::size(lengths))]) != 0) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(100)));
      if (::ftruncate(file_of_maker.get(), TierPageMaker::file_bytes) != 0 ||
          ::pwrite(file_of_maker.get(), good.data(), good.size(), 0) != static_cast<ssize_t>(good.size()))
        return;
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(2000)));
    }
  });
  TierRates rates;
  size_t opened = 0, refused = 0;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (uint64_t round = 1; (opened < 300 || refused < 20) && std::chrono::steady_clock::now() < patience;
       ++round) {
    auto file = TierPageFile::open(directory.get(), maker.directory, own_pid(), ::geteuid(), TierAccess::write);
    if (!file.ok()) {
      ++refused;
      continue;
    }
    ++opened;
    use_all_of(*file, rates, round);
    (void)file->store(0, offsetof(TierRange, request), 1).ok();
  }
  over = true;
  changer.join();
  CHECK(refused >= 20);
  CHECK(opened >= 300);
}
