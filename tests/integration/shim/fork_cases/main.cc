// SPDX-License-Identifier: Apache-2.0
// fork over leased memory: who sees whose stores. One case a run: fork_cases NAME. Exit 0: as POSIX has it.
#include <stdio.h>
#include <string.h>

#include "tests/integration/shim/fork_cases/cases.h"

int main(int argc, char** argv) {
  const std::span<const Case> groups[] = {sharing_cases(), folding_cases(),    fold_torture_cases(),
                                          thread_cases(),  other_ways_cases(), shut_in_cases()};
  for (const auto& group : groups)
    for (const Case& one : group) {
      if (argc != 2) puts(one.name);
      if (argc == 2 && strcmp(argv[1], one.name) == 0) {
        one.run();
        return 0;
      }
    }
  return argc == 1 ? 0 : 2;
}
