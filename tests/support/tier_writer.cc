// SPDX-License-Identifier: Apache-2.0
// Plays the engine's part of a tier page, for tests of `terrace tier` that need a process of a certain state or
// temper: tier_writer NAME=GRANULES[:STATE]... [--deaf]. Says "ready" and lives until its
// standard input ends; meanwhile each line of it ("refuse", "obey", "move N") changes how it goes on.
#include <poll.h>

#include <iostream>
#include <string>
#include <vector>

#include "tests/support/tier_page_file.h"

using namespace terrace;

namespace {

uint32_t state_of(const std::string& word) {
  const std::vector<std::string> words{"absent", "running", "paused", "no_uffd", "stopped", "forked"};
  for (uint32_t i = 0; i < words.size(); ++i)
    if (words[i] == word) return i;
  std::cerr << "no state " << word << "\n";
  std::exit(2);
}

void add_range(test::TierPageMaker& maker, uint32_t index, const std::string& text) {
  const size_t equals = text.find('='), colon = text.find(':');
  layout::TierRange& range =
      maker.add(index, text.substr(0, equals).c_str(), std::stoull(text.substr(equals + 1)));
  if (colon == std::string::npos) return;
  range.state = state_of(text.substr(colon + 1));
  if (range.state == state_of("no_uffd"))
    std::snprintf(range.reason, sizeof range.reason, "Operation not permitted");
}

void obey_line(const std::string& line, test::TierPageMaker& maker, test::TierAnswerer& answerer) {
  if (line == "refuse") answerer.answer_with = layout::TierAnswer::refused;
  if (line == "obey") answerer.answer_with = layout::TierAnswer::done;
  if (line.starts_with("move ")) {
    layout::TierRange& range = maker.range(0);
    const uint64_t granules = std::stoull(line.substr(5));
    range.promotions += granules;
    range.promoted_bytes += granules << 21;
    range.stalled_ns += granules * 170'000;
    range.copy_ns += granules * 150'000;
    range.sweeps += 1;
    range.sampler_ns += 33'000;
    range.ddr_hit_permille = 973;
  }
}

}  // namespace

int main(int argc, char** argv) {
  test::TierPageMaker maker(layout::tier_page_directory);
  test::TierAnswerer answerer(maker);
  bool deaf = false;
  uint32_t ranges = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--deaf")
      deaf = true;
    else
      add_range(maker, ranges++, word);
  }
  std::cout << "ready" << std::endl;
  for (;;) {
    pollfd input{.fd = 0, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, 10) == 1) {
      std::string line;
      if (!std::getline(std::cin, line)) return 0;
      obey_line(line, maker, answerer);
      std::cout << "ok" << std::endl;
    }
    if (!deaf) answerer.round();
  }
}
