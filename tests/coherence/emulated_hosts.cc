// SPDX-License-Identifier: Apache-2.0
#include "tests/coherence/emulated_hosts.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace terrace::coherence {

Fabric::Fabric(uint64_t bytes, uint32_t hosts, uint64_t seed)
    : owner_(std::make_unique<std::byte[]>(bytes + 4096)), lines_(bytes / 64), is_used_(lines_), prng_(seed) {
  memory_ = owner_.get() + (4096 - reinterpret_cast<uintptr_t>(owner_.get()) % 4096) % 4096;
  hosts_.resize(hosts);
  for (Host& host : hosts_) host.lines.resize(lines_);
}

void Fabric::clean(uint32_t line, Line& copy) {
  if (copy.cached != Cached::dirty) return;
  std::memcpy(memory_ + uint64_t{line} * 64, copy.bytes, 64);
  copy.cached = Cached::clean;
}

void Fabric::drop(uint32_t line, Line& copy) {
  clean(line, copy);
  copy.cached = Cached::no;
}

Fabric::Line& Fabric::fetch(uint32_t host, uint32_t line) {
  if (!is_used_[line]) {
    is_used_[line] = true;
    used_.push_back(line);
  }
  Line& copy = hosts_[host].lines[line];
  if (copy.cached == Cached::no) {
    std::memcpy(copy.bytes, memory_ + uint64_t{line} * 64, 64);
    copy.cached = Cached::clean;
  }
  return copy;
}

// One of the invalidations that were asked for happens now, and maybe the line is back before the barrier.
void Fabric::carry_out_early(uint32_t host, uint64_t draw) {
  const std::vector<uint32_t>& asked = hosts_[host].invalidating;
  if (asked.empty()) return;
  const uint32_t line = asked[(draw >> 1) % asked.size()];
  Line& copy = hosts_[host].lines[line];
  if (!copy.invalidating) return;
  copy.invalidating = false;
  drop(line, copy);
  if ((draw & 1) != 0) fetch(host, line);
}

// What caches do of their own accord.
void Fabric::misbehave() {
  const uint64_t draw = prng_.next();
  if ((draw & 63) >= wildness_ || used_.empty()) return;
  const uint32_t host = static_cast<uint32_t>((draw >> 8) % hosts_.size());
  const uint32_t line = used_[(draw >> 16) % used_.size()];
  Line& copy = hosts_[host].lines[line];
  switch ((draw >> 6) & 3) {
    case 0: fetch(host, line); break;
    case 1: drop(line, copy); break;
    case 2: clean(line, copy); break;
    default: carry_out_early(host, draw >> 40); break;
  }
}

uint64_t Fabric::load(uint32_t host, const void* at) {
  misbehave();
  const Line& copy = fetch(host, line_of(at));
  uint64_t value = 0;
  std::memcpy(&value, copy.bytes + (static_cast<const std::byte*>(at) - memory_) % 64, sizeof value);
  return value;
}

void Fabric::store(uint32_t host, void* at, uint64_t value) {
  write(host, at, &value, sizeof value);
}

void Fabric::read(uint32_t host, void* to, const void* from, size_t bytes) {
  misbehave();
  const Line& copy = fetch(host, line_of(from));
  std::memcpy(to, copy.bytes + (static_cast<const std::byte*>(from) - memory_) % 64, bytes);
}

void Fabric::write(uint32_t host, void* to, const void* from, size_t bytes) {
  misbehave();
  Line& copy = fetch(host, line_of(to));
  std::memcpy(copy.bytes + (static_cast<std::byte*>(to) - memory_) % 64, from, bytes);
  copy.cached = Cached::dirty;
}

void Fabric::write_back(uint32_t host, const void* at, size_t bytes) {
  misbehave();
  if (bytes == 0) return;
  for (uint32_t line = line_of(at); line <= line_of(static_cast<const std::byte*>(at) + bytes - 1); ++line) {
    Line& copy = hosts_[host].lines[line];
    if (copy.cached != Cached::dirty || copy.writing_back) continue;
    copy.writing_back = true;
    hosts_[host].writing_back.push_back(line);
  }
}

void Fabric::invalidate(uint32_t host, const void* at, size_t bytes) {
  misbehave();
  if (bytes == 0) return;
  for (uint32_t line = line_of(at); line <= line_of(static_cast<const std::byte*>(at) + bytes - 1); ++line) {
    Line& copy = hosts_[host].lines[line];
    if (copy.invalidating || copy.cached == Cached::no) continue;
    copy.invalidating = true;
    hosts_[host].invalidating.push_back(line);
  }
}

void Fabric::finish_write_backs(uint32_t host) {
  misbehave();
  for (const uint32_t line : hosts_[host].writing_back) {
    Line& copy = hosts_[host].lines[line];
    copy.writing_back = false;
    clean(line, copy);
  }
  hosts_[host].writing_back.clear();
}

void Fabric::finish_invalidations(uint32_t host) {
  misbehave();
  for (const uint32_t line : hosts_[host].invalidating) {
    Line& copy = hosts_[host].lines[line];
    if (!copy.invalidating) continue;
    copy.invalidating = false;
    drop(line, copy);
  }
  hosts_[host].invalidating.clear();
}

void Fabric::fence(uint32_t host, const void* at, size_t bytes) {
  for (uint32_t line = line_of(at); line < line_of(at) + bytes / 64; ++line)
    drop(line, hosts_[host].lines[line]);
}

void Fabric::lose_power(uint32_t host) {
  for (uint32_t line = 0; line < lines_; ++line) {
    Line& copy = hosts_[host].lines[line];
    if (copy.cached == Cached::dirty && prng_.chance(1, 2)) clean(line, copy);
    copy.cached = Cached::no;
    copy.writing_back = copy.invalidating = false;
  }
  hosts_[host].writing_back.clear();
  hosts_[host].invalidating.clear();
}

bool EmulatedHost::begin() const {
  if (program_->unwinding) return false;
  program_->turn();
  if (!program_->killed) {
    if (!program_->late_reads.empty() && fabric_->chance_of_late_read()) {
      const Program::LateRead late = program_->late_reads.back();
      program_->late_reads.pop_back();
      fabric_->evict_at_will(program_->host, late.from);
      fabric_->read(program_->host, late.to, late.from, late.bytes);
    }
    return true;
  }
  program_->unwinding = true;
  throw Killed();
}

uint64_t EmulatedHost::load(const uint64_t* word) const {
  return begin() ? fabric_->load(program_->host, word) : 0;
}

void EmulatedHost::store(uint64_t* word, uint64_t value) const {
  if (begin()) fabric_->store(program_->host, word, value);
}

namespace {

// Line by line, so that others run in between.
template <typename Piece>
void by_lines(const void* shared, size_t bytes, Piece piece) {
  for (size_t at = 0; at < bytes;) {
    const size_t in_line = (reinterpret_cast<uintptr_t>(shared) + at) % 64;
    const size_t length = std::min<size_t>(64 - in_line, bytes - at);
    piece(at, length);
    at += length;
  }
}

}  // namespace

void EmulatedHost::read(void* to, const void* from, size_t bytes) const {
  if (!fabric_->has(from)) {  // the program's own: a copy whose checksum is asked for
    std::memcpy(to, from, bytes);
    return;
  }
  by_lines(from, bytes, [&](size_t at, size_t length) {
    if (!begin()) return;
    const Program::LateRead piece{static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                                  length};
    fabric_->read(program_->host, piece.to, piece.from, piece.bytes);
    program_->late_reads.push_back(piece);
  });
}

void EmulatedHost::write(void* to, const void* from, size_t bytes) const {
  by_lines(to, bytes, [&](size_t at, size_t length) {
    if (begin())
      fabric_->write(program_->host, static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                     length);
  });
}

void EmulatedHost::write_back(const void* at, size_t bytes, Step step) const {
  if (performs(step) && begin()) fabric_->write_back(program_->host, at, bytes);
}

void EmulatedHost::invalidate(const void* at, size_t bytes, Step step) const {
  if (performs(step) && begin()) fabric_->invalidate(program_->host, at, bytes);
}

void EmulatedHost::store_barrier(Step step) const {
  if (performs(step) && begin()) fabric_->finish_write_backs(program_->host);
}

void EmulatedHost::load_barrier(Step step) const {
  if (!performs(step) || !begin()) return;
  finish_reads();
  fabric_->finish_invalidations(program_->host);
}

void EmulatedHost::full_barrier(Step step) const {
  if (!performs(step) || !begin()) return;
  finish_reads();
  fabric_->finish_write_backs(program_->host);
  fabric_->finish_invalidations(program_->host);
}

}  // namespace terrace::coherence
