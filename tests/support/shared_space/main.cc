// SPDX-License-Identifier: Apache-2.0
// One host's processes on a tensor space that two hosts share: a writer and readers, killed at random and
// replaced, which hold what they read against what this host has seen before. Started once a host; the host is
// a machine, or whoever plays one.
//
//   shared_space_host FILE --host 0|1 [--memory coherent|noncoherent] [--run N] [--kills N] [--reads N] [--news
//                     N] [--steps-per-kill N] [--limit-s N] [--seed N] [--fault none|in-place|old|early]
//
// FILE is memory that both hosts map: a dax device, or a file of at least 8 MiB. Host 0 formats it. A line of
// JSON is printed at the end. Exit code 0: both hosts saw enough and nothing wrong; 1: this one did not, or
// could not begin; 3: the other one found something wrong.
#include <CLI/CLI.hpp>

#include "tests/support/shared_space/group.h"

using namespace terrace::shared_space;

int main(int argc, char** argv) {
  Setup setup;
  std::string memory = "coherent", fault = "none";
  CLI::App app{"A writer and readers of one host on a tensor space that two hosts share"};
  app.add_option("file", setup.file)->required();
  app.add_option("--host", setup.host)->required()->check(CLI::Range(0u, hosts - 1));
  app.add_option("--memory", memory)->check(CLI::IsMember({"coherent", "noncoherent"}));
  app.add_option("--run", setup.run)->check(CLI::PositiveNumber);
  app.add_option("--kills", setup.kills);
  app.add_option("--reads", setup.reads);
  app.add_option("--news", setup.news);
  app.add_option("--steps-per-kill", setup.steps_per_kill)->check(CLI::PositiveNumber);
  app.add_option("--limit-s", setup.limit_s);
  app.add_option("--seed", setup.seed);
  app.add_option("--fault", fault)->check(CLI::IsMember({"none", "in-place", "old", "early"}));
  CLI11_PARSE(app, argc, argv);
  setup.coherent = memory == "coherent";
  if (fault == "in-place") setup.fault = Fault::in_place;
  if (fault == "old") setup.fault = Fault::old;
  if (fault == "early") setup.fault = Fault::early;
  return Group(setup).run();
}
