// SPDX-License-Identifier: Apache-2.0
// For checkpoint_test.py: a process that trains and checkpoints, and one that looks at what came of it.
//
//   checkpoint_trainer train SOCKET DIR FIRST   checkpoints step-FIRST, step-FIRST+1, ... until it is killed;
//                                               prints "begun NAME" and "done NAME"
//   checkpoint_trainer hold SOCKET DIR FIRST    the same, but stops in the middle of each, says "middle NAME"
//                                               and waits for a line
//   checkpoint_trainer look SOCKET DIR NAME     prints the step that all tensors are of, or "torn"
//   checkpoint_trainer peer SOCKET DIR NAME     the same, but stops in the middle of the restore as hold does
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/base/units.h"
#include "terrace/checkpoint.h"
#include "terrace/session.h"

using namespace terrace;

namespace {

constexpr uint32_t tensor_count = 6;
constexpr uint64_t tensor_bytes = 24 * mib;  // together more than is written at once

template <typename Value>
Value must(Result<Value> result) {
  if (result.ok()) return std::move(*result);
  std::printf("error %s\n", result.error().to_string().c_str());
  std::exit(1);
}

struct Memory {
  Memory(const std::string& socket, uint64_t ddr_bytes, uint64_t lease_bytes) {
    SessionOptions options;
    options.socket_path = socket;
    session = must(Session::connect(options));
    LeaseRequest request;
    request.bytes = lease_bytes;
    TensorPoolOptions pool_options;
    pool_options.session = session.get();
    pool_options.ddr_bytes = ddr_bytes;
    pool = must(TensorPool::make(pool_options, {must(session->grant(request))}));
  }
  std::unique_ptr<Session> session;
  std::unique_ptr<TensorPool> pool;
};

void say(const char* what, const std::string& name) {
  std::printf("%s %s\n", what, name.c_str());
  std::fflush(stdout);
}

// Says that it is in the middle, and waits for a line.
void wait_in_the_middle(const std::string& name) {
  say("middle", name);
  for (int c = 0; c != '\n' && c != EOF;) c = std::getchar();
}

[[noreturn]] void train(const std::string& socket, const std::string& path, uint64_t step, bool hold) {
  Memory memory(socket, 16 * mib, 320 * mib);
  std::vector<std::shared_ptr<Tensor>> tensors;
  for (uint32_t i = 0; i < tensor_count; ++i)
    tensors.push_back(must(memory.pool->create(
        {.name = "t" + std::to_string(i), .dtype = DType::u64, .shape = {tensor_bytes / 8}})));
  const auto directory = must(CheckpointDirectory::open(path));
  const auto store = [&](uint64_t value) {
    for (const auto& tensor : tensors) {
      auto* words = reinterpret_cast<uint64_t*>(tensor->data());
      for (uint64_t i = 0; i < tensor_bytes / 8; ++i) words[i] = value;
    }
  };
  for (;; ++step) {
    store(step);
    const std::string name = "step-" + std::to_string(step);
    CheckpointOptions options;
    options.progress = [&, once = false](uint64_t, uint64_t) mutable {
      ::usleep(20'000);  // so that a kill finds it at work
      if (hold && !std::exchange(once, true)) wait_in_the_middle(name);
    };
    const auto write = must(directory->checkpoint(name, *memory.pool, tensors, options));
    say("begun", name);
    while (!write->done()) store(1'000'000 + step);
    if (const Status done = write->wait(0); !done.ok()) must(Result<int>(done.error()));
    say("done", name);
  }
}

int look(const std::string& socket, const std::string& path, const std::string& name, bool hold) {
  Memory memory(socket, 0, 160 * mib);
  PoolImportOptions options;
  options.progress = [&, once = false](uint64_t, uint64_t) mutable {
    if (hold && !std::exchange(once, true)) wait_in_the_middle(name);
  };
  const PoolImport back =
      must(must(CheckpointDirectory::open(path, false))->restore(name, *memory.pool, options));
  const uint64_t step = *reinterpret_cast<const uint64_t*>(back.tensors[0]->data());
  for (const auto& tensor : back.tensors) {
    const auto* words = reinterpret_cast<const uint64_t*>(tensor->data());
    for (uint64_t i = 0; i < tensor->bytes().size() / 8; ++i) {
      if (words[i] == step) continue;
      say("torn", tensor->name());
      return 0;
    }
  }
  say(back.tensors.size() == tensor_count ? "step" : "missing", std::to_string(step));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string verb = argv[1];
  if (verb == "look" || verb == "peer") return look(argv[2], argv[3], argv[4], verb == "peer");
  train(argv[2], argv[3], std::strtoull(argv[4], nullptr, 10), verb == "hold");
}
