// SPDX-License-Identifier: Apache-2.0
// A KV space under processes that put, read, read in place and erase blocks, are killed and stopped; every word that is
// read is compared.
//
//   kv_soak --reads 1e8                             processes over memory of this run alone
//   kv_soak --reads 1e8 --hosts 2 --noncoherent     of two hosts, which ask each other nothing
//   kv_soak --reads 1e8 --emulated                  emulated hosts without coherent caches
//   kv_soak --file FILE --host 0|1 --hosts 2 ...    one of two hosts over one device; host 0 makes the space
//   kv_soak --socket SOCKET --lease LABEL ...       in a lease, owners by its manager, or with --locks by its file
//
// A line of JSON is printed at the end. Exit code 0: enough was seen, and nothing wrong.
#include <CLI/CLI.hpp>

#include "tests/support/kv_soak/emulated.h"
#include "tests/support/kv_soak/group.h"

using namespace terrace::kv_soak;

int main(int argc, char** argv) {
  Setup setup;
  std::string plant = "none";
  bool emulated = false, noncoherent = false;
  double reads = 20'000;
  uint32_t host = 0;
  CLI::App app{"A KV space under processes that are killed and stopped; every word that is read is compared"};
  app.add_option("--reads", reads, "Blocks that are read and compared")->check(CLI::PositiveNumber);
  app.add_option("--kills", setup.kills, "At least so many");
  app.add_option("--stops", setup.stops, "At least so many");
  app.add_option("--seconds", setup.seconds, "Go on for so long at least");
  app.add_option("--limit-s", setup.limit_s, "Give up then");
  app.add_option("--kill-every", setup.kill_every_ms, "Milliseconds between two kills, on average; 0: none");
  app.add_option("--stop-every", setup.stop_every_ms, "Milliseconds between two stops; 0: none");
  app.add_option("--stop", setup.stop_ms, "Milliseconds that a worker is stopped");
  app.add_flag("--emulated", emulated, "On emulated hosts without coherent caches");
  app.add_flag("--noncoherent", noncoherent, "Write back and drop lines, as such hosts need it");
  app.add_option("--checksums", setup.checksums, "Whether blocks have a checksum; else as the memory says");
  app.add_option("--file", setup.file, "Memory that all hosts map");
  app.add_option("--offset", setup.offset, "Where the space begins in it");
  app.add_option("--bytes", setup.bytes, "Of the space");
  app.add_option("--ledger", setup.ledger_file, "Where hosts know together what was begun and erased, 2 MiB");
  app.add_option("--ledger-offset", setup.ledger_offset);
  app.add_option("--socket", setup.socket, "A manager's or agent's");
  app.add_option("--lease", setup.lease, "Label of the lease that the space is in");
  app.add_flag("--locks", setup.by_locks, "Owners by locks on the lease's memory, not by its manager");
  app.add_option("--hosts", setup.hosts)->check(CLI::Range(1u, hosts_max));
  app.add_option("--host", host, "The one that this program plays; else all of them")
      ->check(CLI::Range(0u, hosts_max - 1));
  app.add_option("--workers", setup.workers, "Processes of each host")->check(CLI::Range(1u, workers_max));
  app.add_option("--keys", setup.keys)->check(CLI::Range(64u, keys_max));
  app.add_option("--run", setup.run, "A number that no other run over this memory had")
      ->check(CLI::PositiveNumber);
  app.add_flag("--join", setup.join, "The space of this run, and its ledger, are there already");
  app.add_option("--find", setup.find, "With --join: at least so many blocks are there");
  app.add_flag("--restarted", setup.restarted, "This host's power was cut, and it is back");
  app.add_flag("--expect-loss", setup.expect_loss, "The lease ends meanwhile, and each worker hears of it");
  app.add_flag("--progress", setup.progress, "Also print the line as it is now, each second");
  app.add_option("--seed", setup.seed);
  app.add_option("--plant", plant)
      ->check(CLI::IsMember({"none", "torn", "other", "foreign", "stale", "in-place"}));
  CLI11_PARSE(app, argc, argv);
  setup.reads = static_cast<uint64_t>(reads);
  setup.coherent = !noncoherent;
  if (app.count("--host") != 0) setup.host = host;
  if (emulated) return run_emulated(setup.reads, setup.seed, plant != "none", setup.progress);
  if (plant == "torn") setup.plant = Plant::torn;
  if (plant == "other") setup.plant = Plant::other;
  if (plant == "foreign") setup.plant = Plant::foreign;
  if (plant == "stale") setup.plant = Plant::stale;
  if (plant == "in-place") setup.plant = Plant::in_place;
  return Group(setup).run();
}
