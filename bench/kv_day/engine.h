// SPDX-License-Identifier: Apache-2.0
// One process of an engine: takes the next request, reads the blocks of its prompt's cached prefix, puts the others.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/kv_day/shared.h"
#include "terrace/host_ownership.h"
#include "terrace/mapping.h"
#include "terrace/session.h"

namespace terrace::bench::day {

// Parts and seats of each host: those that its engines need, and one for who follows a killed one.
std::vector<HostRange> ranges_of(const Settings& settings);

class Engine {
 public:
  // `number`: of the engine; its host follows from it.
  static Result<std::unique_ptr<Engine>> start(const Shared& shared, uint32_t number, uint32_t process);
  void work();  // until all requests are served, or it is told to stop

 private:
  Engine(const Shared& shared, uint32_t number, uint32_t process);
  std::optional<uint64_t> take_request();
  void serve(uint64_t request);
  void read_again(uint64_t request);
  bool read_batch(std::span<const uint32_t> blocks);
  uint64_t read_prefix(std::span<const uint32_t> blocks);
  void put_rest(std::span<const uint32_t> blocks, uint64_t from);
  bool read(uint32_t block, const std::string& key);
  bool read_in_place(uint32_t block, const std::string& key);
  bool failed(uint32_t block, const Error& error, const char* how);
  void let_go();

  const Shared& shared_;
  Control& control_;
  EngineCounts& counts_;
  const uint32_t process_;
  uint32_t puts_ = 0;
  uint64_t reads_ = 0, evicted_before_ = 0;
  bool is_successor_ = false;
  Prng prng_;
  std::vector<std::byte> bytes_, batch_bytes_;
  std::vector<std::string> keys_;
  std::vector<std::string_view> key_views_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Mapping> mapping_;
  std::unique_ptr<KvSpace> space_;
  KvView held_;  // the block that was read in place last
  uint32_t held_block_ = 0;
};

// The process that Processes starts: `number` is the engine's. Returns its exit status.
int run_engine(int shared_fd, uint32_t number, uint32_t process);

}  // namespace terrace::bench::day
