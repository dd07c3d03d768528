// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_replay/shared_run.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "bench/lease/manager.h"

namespace terrace::bench {

std::string block_name(uint32_t block) {
  return "kv/" + std::to_string(block);
}

// Control, truth, stamps, requests, blocks: each begins on 64 bytes.
void SharedRun::map(uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) die("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  memory_ = {static_cast<std::byte*>(at), bytes};
  control_ = reinterpret_cast<Control*>(at);
}

namespace {

struct Places {
  explicit Places(const Control& control) {
    const auto after = [](uint64_t begin, uint64_t bytes) { return (begin + bytes + 63) / 64 * 64; };
    truth = after(0, sizeof(Control));
    stamps = after(truth, control.block_count * sizeof(uint64_t));
    requests = after(stamps, control.block_count * sizeof(uint64_t));
    blocks = after(requests, control.requests * sizeof(TraceRequest));
    end = after(blocks, control.block_entries * sizeof(uint32_t));
  }
  uint64_t truth, stamps, requests, blocks, end;
};

}  // namespace

SharedRun::SharedRun(const Settings& settings, const Trace& trace)
    : SharedRun([&] {
        const UniqueFd made(::memfd_create("kv-replay", MFD_CLOEXEC));
        if (!made.valid()) die("no memory file can be made");
        auto control = std::make_unique<Control>();
        control->settings = settings;
        control->requests = static_cast<uint32_t>(trace.requests.size());
        control->block_entries = static_cast<uint32_t>(trace.blocks.size());
        control->block_count = trace.block_count;
        const Places places(*control);
        if (::ftruncate(made.get(), static_cast<off_t>(places.end)) != 0) die("no shared memory");
        const int kept = ::fcntl(made.get(), F_DUPFD, 3);  // goes through exec
        const auto put = [&](const void* from, size_t bytes, uint64_t at) {
          if (::pwrite(kept, from, bytes, static_cast<off_t>(at)) != static_cast<ssize_t>(bytes))
            die("cannot fill the shared memory");
        };
        put(control.get(), sizeof(Control), 0);
        put(trace.requests.data(), trace.requests.size() * sizeof(TraceRequest), places.requests);
        put(trace.blocks.data(), trace.blocks.size() * sizeof(uint32_t), places.blocks);
        return kept;
      }()) {}

SharedRun::SharedRun(int fd) : fd_(fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size < static_cast<off_t>(sizeof(Control)))
    die("--worker is for the bench itself");
  map(static_cast<uint64_t>(status.st_size));
  const Places places(*control_);
  if (places.end > memory_.size()) die("--worker is for the bench itself");
  std::byte* const base = memory_.data();
  truth_ = std::make_unique<Truth>(
      std::span(reinterpret_cast<std::atomic<uint64_t>*>(base + places.truth), size_t{control_->block_count}));
  stamps_ = {reinterpret_cast<std::atomic<uint64_t>*>(base + places.stamps), control_->block_count};
  requests_ = {reinterpret_cast<TraceRequest*>(base + places.requests), control_->requests};
  blocks_ = {reinterpret_cast<uint32_t*>(base + places.blocks), control_->block_entries};
}

SharedRun::~SharedRun() {
  ::munmap(memory_.data(), memory_.size());
}

void SharedRun::found_wrong(Wrong what, uint32_t block, const std::string& text) {
  ++control_->wrong[static_cast<size_t>(what)];
  if (control_->told.exchange(1) != 0) return;
  constexpr const char* names[] = {"lost", "torn", "stale"};
  std::snprintf(control_->first_wrong, sizeof control_->first_wrong, "%s is %s: %s", block_name(block).c_str(),
                names[static_cast<size_t>(what)], text.c_str());
}

void judge_block(SharedRun& run, uint32_t block, Fact before, const SeenBlock& seen, const char* how) {
  const Fact after = run.truth().of(block);
  const std::string text = std::string(how) + ", generation " + std::to_string(seen.generation);
  if (!seen.whole || seen.block != block)
    run.found_wrong(Wrong::torn, block, text + ": not all words are of it");
  else if (seen.generation > after.generation)
    run.found_wrong(Wrong::torn, block, text + ": was never written");
  else if (seen.generation < before.oldest())
    run.found_wrong(Wrong::stale, block, text + ", when " + std::to_string(before.oldest()) + " was there");
  else
    run.truth().seen(block, after, seen.generation);
}

}  // namespace terrace::bench
