// SPDX-License-Identifier: Apache-2.0
// checkpoint_drain_over_dd, checkpoint_pause_ms_per_gib: tensors in DDR and CXL that a thread goes on storing
// to are checkpointed, beside a plain O_DIRECT write of as many bytes in the same round.
//
// What the writer does stands for training: all tensors, one after the other, a step again and again; each word
// says of which step it is, and what comes back from the disk must be of one step.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "bench/tensor/disk.h"
#include "bench/tensor/passes.h"
#include "core/base/kernel_clock.h"
#include "core/base/units.h"
#include "terrace/checkpoint.h"

namespace terrace::bench {
namespace {

constexpr uint64_t tensor_bytes = 16 * mib;

struct Trained {
  Trained(uint64_t bytes) : session(8 * gib) {
    LeaseRequest request;
    request.bytes = 2 * bytes;  // half of the tensors, and the snapshot's room
    auto lease = must(session.grant(request), "grant");
    populate(lease->fd(), lease->bytes());
    TensorPoolOptions options;
    options.session = &session;
    options.name = "bench-checkpoint";
    options.ddr_bytes = bytes / 2;
    pool = must(TensorPool::make(options, {lease}), "pool");
    for (uint64_t index = 0; index < bytes / tensor_bytes; ++index)
      tensors.push_back(must(pool->create({.name = "layer." + std::to_string(index),
                                           .dtype = DType::u64,
                                           .shape = {tensor_bytes / 8},
                                           .hint = TensorHint::weights}),
                             "tensor"));
    step();
  }

  void step() {
    ++steps;
    for (const auto& tensor : tensors) {
      auto* words = reinterpret_cast<uint64_t*>(tensor->data());
      for (uint64_t i = 0; i < tensor_bytes / 8; ++i) words[i] = steps;
    }
  }

  test::FakeSession session;
  std::unique_ptr<TensorPool> pool;
  std::vector<std::shared_ptr<Tensor>> tensors;
  uint64_t steps = 0;
};

// Of the tensors in the file: all words are `step`.
void check(CheckpointDirectory& directory, const std::string& name, uint64_t bytes, uint64_t step) {
  test::FakeSession session(8 * gib);
  LeaseRequest request;
  request.bytes = bytes + 32 * mib;
  TensorPoolOptions options;
  options.session = &session;
  options.name = "bench-restored";
  const auto pool = must(TensorPool::make(options, {must(session.grant(request), "grant")}), "pool");
  const PoolImport back = must(directory.restore(name, *pool), "restore");
  for (const auto& tensor : back.tensors) {
    const auto* words = reinterpret_cast<const uint64_t*>(tensor->data());
    for (uint64_t i = 0; i < tensor->bytes().size() / 8; ++i)
      if (words[i] != step) die("checkpoint " + name + ": tensor " + tensor->name() + " is not of one step");
  }
}

struct Figures {
  std::vector<double> drained, pauses_ms, begins_ms;
  uint64_t copied_bytes = 0;
  std::string reason;
};

// `trains`: the thread stores during the drain.
void checkpoint_once(Trained& trained, CheckpointDirectory& directory, const std::string& name, bool trains,
                     Figures& figures) {
  const uint64_t bytes = trained.tensors.size() * tensor_bytes, expected = trained.steps;
  CheckpointOptions options;
  options.room_bytes_max = bytes;
  const uint64_t called = monotonic_ns();
  const auto write = must(directory.checkpoint(name, *trained.pool, trained.tensors, options), "checkpoint");
  const uint64_t begin = monotonic_ns();
  figures.begins_ms.push_back(static_cast<double>(begin - called) / 1e6 /
                              (static_cast<double>(bytes) / static_cast<double>(gib)));
  std::atomic<bool> stop{!trains};
  std::thread training([&] {
    while (!stop) trained.step();
  });
  must(write->wait(600 * ns_per_s), "drain");
  figures.drained.push_back(gib_per_s(bytes, seconds_since(begin)));
  stop = true;
  training.join();
  const CheckpointProgress progress = write->progress();
  figures.pauses_ms.push_back(static_cast<double>(progress.pause_ns) / 1e6 /
                              (static_cast<double>(progress.snapshot_bytes) / static_cast<double>(gib)));
  figures.copied_bytes = progress.copied_bytes;
  figures.reason = progress.reason;
  check(directory, name, bytes, expected);
  must(directory.remove(name), "remove");
}

}  // namespace

void measure_checkpoint(const Sizes& sizes, nlohmann::json& out) {
  const uint64_t bytes = sizes.smoke ? 64 * mib : 1 * gib;
  const int rounds = sizes.smoke ? 1 : 5;
  const BenchDirectory files(sizes.directory);
  const auto directory = must(CheckpointDirectory::open(files.file("checkpoints")), "directory");
  Trained trained(bytes);
  Figures still, training;
  std::vector<double> written, copied;
  for (int round = 0; round < rounds; ++round) {
    checkpoint_once(trained, *directory, "still", false, still);
    checkpoint_once(trained, *directory, "training", true, training);
    written.push_back(gib_per_s(bytes, plain_write_s(files.file("plain"), bytes)));
    std::filesystem::remove(files.file("plain"));
    // What a snapshot by copying would take, with as little as a copy takes: into memory that is there.
    std::vector<std::byte> copy(bytes / 4);
    const uint64_t begin = monotonic_ns();
    for (size_t i = 0; i < trained.tensors.size() / 4; ++i)
      std::memcpy(copy.data() + i * tensor_bytes, trained.tensors[i]->data(), tensor_bytes);
    copied.push_back(1000 / gib_per_s(bytes / 4, seconds_since(begin)));
  }
  const double ratio = median(still.drained) / median(written);
  std::printf(
      "checkpoint: drained at %.2f GiB/s, a plain write %.2f: %.2f times; while all is stored to: %.2f GiB/s, "
      "%.2f "
      "times, %.0f of %.0f MiB copied aside\n",
      median(still.drained), median(written), ratio, median(training.drained),
      median(training.drained) / median(written), static_cast<double>(training.copied_bytes / mib),
      static_cast<double>(bytes / mib));
  std::printf(
      "checkpoint: a pause of %.1f ms a GiB, %.1f with disk space and room; copying that takes %.1f ms\n",
      median(still.pauses_ms), median(still.begins_ms), median(copied));
  if (!still.reason.empty()) std::printf("copied during the pause: %s\n", still.reason.c_str());
  out["checkpoint_drain_over_dd"] = ratio;
  out["checkpoint_drain_training_over_dd"] = median(training.drained) / median(written);
  out["checkpoint_drain_gib_per_s"] = median(still.drained);
  out["checkpoint_pause_ms_per_gib"] = median(still.pauses_ms);
  out["checkpoint_begin_ms_per_gib"] = median(still.begins_ms);
  out["checkpoint_copy_ms_per_gib"] = median(copied);
  out["checkpoint_note"] = still.reason;
}

}  // namespace terrace::bench
