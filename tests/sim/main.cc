// SPDX-License-Identifier: Apache-2.0
// terrace_sim: runs seeds of the simulation and stops at the first failure, which --seed replays.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/sim/world.h"

using namespace terrace;
using namespace terrace::sim;

namespace {

struct Arguments {
  Options options;
  uint64_t seeds = 1;
  bool expect_failure = false;
};

void print_usage() {
  std::printf(
      "terrace_sim [--seeds N] [--seed S] [--steps M] [--engine | --store] [--verbose]\n"
      "            [--plant NAME [--expect-failure]]\n"
      "  --seeds N          run N seeds, from S on (default 1)\n"
      "  --seed S           the first seed (default 1)\n"
      "  --steps M          events of a run before its faults stop (default 2000)\n"
      "  --engine           run the daemon's own engine instead of the shell made of events\n"
      "  --store            and the daemon's own store, on a simulated disk\n"
      "  --verbose          print every event\n"
      "  --plant NAME       plant a defect, to see a checker find it:\n");
  for (size_t i = 1; i < static_cast<size_t>(Plant::count); ++i) {
    const auto plant = static_cast<Plant>(i);
    std::printf("      %-24s%s\n", std::string(plant_name(plant)).c_str(),
                std::string(plant_text(plant)).c_str());
  }
  std::printf("  --expect-failure   succeed only if some seed fails\n");
}

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "terrace_sim: %s; --help shows the options\n", what.c_str());
  std::exit(2);
}

uint64_t number_of(const char* option, const char* text) {
  char* end = nullptr;
  const uint64_t value = text == nullptr ? 0 : std::strtoull(text, &end, 10);
  if (text == nullptr || end == text || *end != '\0') refuse(std::string(option) + " needs a number");
  return value;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (option == "--help") {
      print_usage();
      std::exit(0);
    } else if (option == "--verbose") {
      arguments.options.trace = arguments.options.echo = true;
    } else if (option == "--engine") {
      arguments.options.engine = true;
    } else if (option == "--store") {
      arguments.options.engine = arguments.options.store = true;
    } else if (option == "--expect-failure") {
      arguments.expect_failure = true;
    } else if (option == "--seeds") {
      arguments.seeds = number_of("--seeds", value), ++i;
    } else if (option == "--seed") {
      arguments.options.seed = number_of("--seed", value), ++i;
    } else if (option == "--steps") {
      arguments.options.steps = number_of("--steps", value), ++i;
    } else if (option == "--plant") {
      const auto plant = plant_by_name(value == nullptr ? "" : value);
      if (!plant.has_value()) refuse("--plant needs the name of a defect");
      arguments.options.plant = *plant, ++i;
    } else {
      refuse("unknown option " + option);
    }
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  Options options = arguments.options;
  Outcome sum;
  for (uint64_t i = 0; i < arguments.seeds; ++i, ++options.seed) {
    const Outcome outcome = run_seed(options);
    sum.step += outcome.step;
    sum.grants += outcome.grants;
    sum.commits += outcome.commits;
    sum.crashes += outcome.crashes;
    sum.recoveries += outcome.recoveries;
    sum.moves += outcome.moves;
    if (outcome.passed) continue;
    if (!options.echo) {
      for (const std::string& line : outcome.lines) std::printf("%s\n", line.c_str());
    }
    const bool planted = options.plant != Plant::none;
    std::printf("seed %" PRIu64 " failed at step %" PRIu64 ": %s\nreplay: terrace_sim --seed %" PRIu64
                " --steps %" PRIu64 "%s%s%s --verbose\n",
                options.seed, outcome.step, outcome.failure.c_str(), options.seed, options.steps,
                options.store    ? " --store"
                : options.engine ? " --engine"
                                 : "",
                planted ? " --plant " : "", planted ? std::string(plant_name(options.plant)).c_str() : "");
    return arguments.expect_failure ? 0 : 1;
  }
  std::printf("%" PRIu64 " seeds passed: %" PRIu64 " events, %" PRIu64 " acknowledged grants, %" PRIu64
              " commits, %" PRIu64 " crashes, %" PRIu64 " recoveries, %" PRIu64 " moves by the manager\n",
              arguments.seeds, sum.step, sum.grants, sum.commits, sum.crashes, sum.recoveries, sum.moves);
  return arguments.expect_failure ? 1 : 0;
}
