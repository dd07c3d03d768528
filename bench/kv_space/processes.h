// SPDX-License-Identifier: Apache-2.0
// The processes of bench_kv_space: this program again, as `--role NAME`, with the space and a page of counts.
//
// They end with who started them, however that ends: the kernel kills them. A directory of files is removed by a
// process of its own, which waits for the end of a pipe.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>

#include "bench/kv_space/support.h"

namespace terrace::bench::kv {

inline constexpr uint32_t workers_max = 4;
inline constexpr int rounds_max = 16;

struct Job {
  uint32_t workers = 1;
  int rounds = 1;
  uint64_t round_ns = 0;
  uint64_t blocks = 0;
  uint64_t block_bytes = 0;
  bool plant = false;
};

// Of one worker, also after it was killed. One writer at a time.
struct Tally {
  std::array<double, rounds_max> first{}, second{};  // by round: what is compared, and with what
  struct Rate {
    double per_s = 0, per_cpu_s = 0;
  };
  Rate rates[rounds_max][4][2] = {};  // of scaling.cc: by round and kind; of one process, of all
  Histogram before, during;
  std::atomic<uint64_t> calls{0}, checked{0}, wrong{0}, lost{0}, refused{0};
  std::atomic<double> ns{0}, cpu_ns{0};
  char why[300]{};  // of the first wrong one
};

struct Control {
  Job job;
  std::atomic<uint32_t> arrived{0}, ready{0}, go{0}, stop{0}, during{0};
  std::array<Tally, workers_max> workers;
};

// What a worker is given.
struct Worker {
  uint32_t index = 0;
  Control& control;
  const MemoryFile& memory;

  Tally& tally() const { return control.workers[index]; }
  const Job& job() const { return control.job; }
  void meet() const;  // returns when all workers of the job are here
};

void sleep_ns(uint64_t ns);
// Gives up after two minutes.
void wait_until(const std::atomic<uint32_t>& word, uint32_t least, uint64_t pause_ns = 100 * ns_per_us);

class Workers {
 public:
  explicit Workers(const MemoryFile& memory, const Job& job);
  ~Workers();  // kills who is left

  Control& control() { return *control_; }
  void start(uint32_t index, const char* role);
  void kill(uint32_t index);  // -9; returns when it is gone
  void end(uint32_t index);   // waits; gives up when it did not end well
  void end_all();
  void run_all(const char* role);     // as many as the job has, to their end
  std::string ended(uint32_t index);  // how one ended by itself; empty: it has not

 private:
  const MemoryFile& memory_;
  MemoryFile shared_;
  Control* const control_;
  std::array<pid_t, workers_max> pids_{};
};

// Runs `role` in a process that Workers started. Returns its exit status.
int run_role(const std::string& role, uint32_t index, int control_fd, int memory_fd);

// A server or the like, with its output in nobody's way. Killed with this object, or with this program.
class Program {
 public:
  explicit Program(const std::vector<std::string>& command);
  ~Program();
  Program(const Program&) = delete;

 private:
  pid_t pid_ = -1;
};

// A directory in memory, removed at any end of this program.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd lives_;
  pid_t remover_ = -1;
};
int remove_when_over(int pipe_fd, const std::string& path);  // the role of the remover

}  // namespace terrace::bench::kv
