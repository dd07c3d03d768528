// SPDX-License-Identifier: Apache-2.0
// A terraced of the build tree, started for one bench, and an echo server to compare its calls with.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::bench {

[[noreturn]] void die(const std::string& what);

// A directory that goes away with its owner.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct ManagerOptions {
  std::string directory;        // runtime
  std::string state_directory;  // on the disk or the memory file system to measure
  uint64_t pool_bytes = 0;
  bool overcommit = false;  // memory is not reserved: for pools larger than this machine
};

class Manager {
 public:
  explicit Manager(ManagerOptions options);  // adopts its device and makes pool "p"
  ~Manager();
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  const std::string& socket() const { return socket_; }
  // Kills it with SIGKILL and starts it again; returns the seconds from the new process's start until it
  // answered a call.
  double restart();
  uint64_t rss_bytes() const;
  double cpu_seconds() const;  // user and system, of all its threads

 private:
  void start();

  ManagerOptions options_;
  std::string socket_;
  pid_t pid_ = -1;
};

// Answers Gateway.hello with an empty reply: what an RPC costs that does nothing.
class EchoServer {
 public:
  explicit EchoServer(const std::string& directory);
  ~EchoServer();
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;
  const std::string& socket() const { return socket_; }

 private:
  std::string socket_;
  pid_t pid_ = -1;
};

}  // namespace terrace::bench
