// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kv_soak/worker.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "bench/kv_day/block.h"

namespace terrace::kv_soak {
namespace {

constexpr size_t batch = 16;
constexpr size_t held_most = 4;
constexpr uint64_t longest = 8 * kib;
constexpr uint64_t put_wait_ns = 5 * ns_per_ms, erase_wait_ns = 20 * ns_per_ms;

// A block says of which run and key it is, and of which of the key's puts. See bench/kv_day/block.h for its words.
uint64_t block_number(uint32_t run, uint32_t key) {
  return uint64_t{run} << 32 | key;
}

template <typename Counter>
void add(Counter& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

std::string key_of(uint32_t key) {
  return "soak/" + std::to_string(key);
}

uint64_t length_of(uint32_t key) {
  return key % 16 == 0 ? 1 * kib + key % 7 * kib : 24 + key % 59 * 8;
}

Worker::Worker(const Setup& setup, Ledger& ledger, Attached attached, uint32_t host, uint32_t index,
               uint64_t seed)
    : setup_(setup),
      ledger_(ledger),
      attached_(std::move(attached)),
      space_(*attached_.space),
      host_(host),
      index_(index),
      slot_(host * setup.workers + index),
      counts_(ledger.counts[host][index]),
      prng_(seed),
      bytes_(longest),
      batch_(batch * longest) {}

Exit Worker::work() {
  try {
    while (ledger_.of_hosts[host_].quit == 0) {
      step();
      if (prng_.chance(1, 50'000)) break;  // as one that is upgraded
    }
    while (!held_.empty()) let_one_go();
  } catch (const LeaseEnded&) {
    return exit_lease_ended;
  }
  return exit_left;
}

Exit Worker::read_all() {
  try {
    for (uint32_t key = 0; key < setup_.keys; ++key) read_one(key);
  } catch (const LeaseEnded&) {
    return exit_lease_ended;
  }
  return exit_left;
}

void Worker::step() {
  const uint64_t draw = prng_.below(1000);
  if (draw < 600)
    read_batch();
  else if (draw < 750)
    read_one(any_key());
  else if (draw < 850)
    view();
  else if (draw < 900)
    let_one_go();
  else if (draw < 940)
    put(own_key());
  else if (draw < 980)
    erase(own_key());
  else if (draw < 998)
    look();
  else
    evict_some();
  if (prng_.chance(1, 20'000)) verify();
  if (plants(Plant::in_place)) scribble();
}

uint32_t Worker::own_key() {
  const uint32_t writers = setup_.hosts * setup_.workers;
  return slot_ + writers * static_cast<uint32_t>(prng_.below((setup_.keys - slot_ + writers - 1) / writers));
}

void Worker::read_batch() {
  std::vector<uint32_t> keys(batch);
  for (uint32_t& key : keys) key = any_key();
  read_batch(keys);
}

void Worker::read_batch(const std::vector<uint32_t>& keys) {
  std::vector<std::string> names;
  std::vector<uint32_t> erased;
  names.reserve(keys.size());
  for (const uint32_t key : keys) {
    names.push_back(key_of(key));
    erased.push_back(ledger_.keys[key].erased);
  }
  std::vector<KvGet> gets;
  for (size_t at = 0; at < keys.size(); ++at)
    gets.push_back({.key = names[at], .into = std::span(batch_).subspan(at * longest, longest)});
  const std::vector<Result<uint64_t>> got = space_.get_many({}, gets);
  std::vector<uint32_t> missing;
  for (size_t at = 0; at < keys.size(); ++at) {
    if (got[at].ok()) {
      if (judge(keys[at], gets[at].into.first(*got[at]), erased[at], "copied in a batch")) add(counts_.copied);
    } else {
      judge_error(keys[at], got[at].error(), "get_many");
      if (is_own(keys[at])) missing.push_back(keys[at]);
    }
  }
  for (const uint32_t key : missing) put(key);
}

void Worker::read_one(uint32_t key) {
  const uint32_t erased = ledger_.keys[key].erased;
  const Result<uint64_t> got = space_.get({}, {.key = key_of(key), .into = bytes_});
  if (!got.ok()) return judge_error(key, got.error(), "get");
  if (judge(key, std::span(bytes_).first(*got), erased, "copied")) add(counts_.copied);
}

void Worker::view() {
  if (held_.size() >= held_most) return let_one_go();
  const uint32_t key = any_key(), erased = ledger_.keys[key].erased;
  Result<KvView> view = space_.view({}, key_of(key));
  if (!view.ok()) return judge_error(key, view.error(), "view");
  if (!judge(key, view->bytes(), erased, "in place")) return;
  add(counts_.in_place);
  held_.push_back({key, std::move(*view)});
}

// Its bytes must not have changed, whatever was put, erased and evicted meanwhile.
void Worker::let_one_go() {
  if (held_.empty()) return;
  const size_t at = prng_.below(held_.size());
  judge(held_[at].key, held_[at].view.bytes(), 0, "in place, later");
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(at));
}

void Worker::put(uint32_t key) {
  const uint32_t number = ++ledger_.keys[key].begun;
  const uint32_t run = setup_.run + (plants(Plant::foreign) ? 1 : 0);
  const uint32_t what = plants(Plant::other) ? (key + 1) % setup_.keys : key;
  const std::span<std::byte> bytes = std::span(bytes_).first(length_of(key));
  bench::day::make_block(block_number(run, what), {slot_, number}, bytes);
  if (plants(Plant::torn)) bytes.back() ^= std::byte{1};
  Status put;
  if (prng_.chance(1, 2))
    put = space_.put({}, {.key = key_of(key), .bytes = bytes, .options = {.wait_ns = put_wait_ns}});
  else
    put = put_in_place(key, bytes);
  if (!put.ok()) return judge_error(key, put.error(), "put");
  add(counts_.puts);
  if (plants(Plant::stale)) ledger_.keys[key].erased = number;
}

// In two halves, so that kills, stops and readers find it half-written.
Status Worker::put_in_place(uint32_t key, std::span<const std::byte> bytes) {
  Result<KvWrite> write = space_.begin_put({}, key_of(key), bytes.size(), {.wait_ns = put_wait_ns});
  if (!write.ok()) return write.error();
  if (setup_.in_lease()) {
    TERRACE_RETURN_IF_ERROR(write->fill(bytes));  // plain stores end the process when the lease ends
  } else {
    const size_t half = bytes.size() / 2;
    std::memcpy(write->bytes().data(), bytes.data(), half);
    if (prng_.chance(1, 8)) ::sched_yield();
    if (prng_.chance(1, 32)) return Error{.code = ErrorCode::cancelled, .detail = "destroyed: nobody finds it"};
    std::memcpy(write->bytes().data() + half, bytes.data() + half, bytes.size() - half);
  }
  return write->publish();
}

void Worker::erase(uint32_t key) {
  const uint32_t number = ledger_.keys[key].begun;
  const Status erased = space_.erase({}, key_of(key), erase_wait_ns);
  if (!erased.ok()) return judge_error(key, erased.error(), "erase");
  ledger_.keys[key].erased = number;
  add(counts_.erased);
}

void Worker::look() {
  std::vector<std::string> names;
  std::vector<std::string_view> keys;
  for (size_t at = 0; at < batch; ++at) names.push_back(key_of(any_key()));
  keys.assign(names.begin(), names.end());
  bool found[batch] = {};
  if (const Status status = space_.exists({}, keys, found); !status.ok())
    judge_error(0, status.error(), "exists");
  if (const Result<uint64_t> there = space_.prefix({}, keys); !there.ok())
    judge_error(0, there.error(), "prefix");
}

void Worker::evict_some() {
  if (!prng_.chance(1, 16)) return;
  if (const Result<uint64_t> gone = space_.evict(4 * kib); !gone.ok()) judge_error(0, gone.error(), "evict");
}

void Worker::verify() {
  const Result<KvVerified> verified = space_.verify();
  if (!verified.ok()) return judge_error(0, verified.error(), "verify");
  for (const KvBlockInfo& block : verified->wrong) ledger_.fail(host_, index_, "verify: " + block.key);
}

void Worker::scribble() {
  const Result<KvView> view = space_.view({}, key_of(any_key()));
  if (!view.ok()) return;
  const_cast<std::byte&>(view->bytes()[view->bytes().size() / 2]) ^= std::byte{0x40};
}

bool Worker::judge(uint32_t key, std::span<const std::byte> bytes, uint32_t erased_before, const char* how) {
  const auto wrong = [&](const std::string& what) {
    fail(key, std::string(how) + ": " + what);
    return false;
  };
  if (bytes.size() != length_of(key)) return wrong("torn: " + std::to_string(bytes.size()) + " bytes");
  const bench::day::Seen seen = bench::day::see_block(bytes);
  const auto run = static_cast<uint32_t>(seen.block >> 32), of = static_cast<uint32_t>(seen.block);
  if (seen.wrong_at != 0) return wrong("torn from byte " + std::to_string(seen.wrong_at));
  if (run != setup_.run) return wrong("foreign: of run " + std::to_string(run));
  if (of != key) return wrong("foreign: the block of key " + std::to_string(of));
  if (seen.put.number > ledger_.keys[key].begun)
    return wrong("foreign: put " + std::to_string(seen.put.number) + " was never begun");
  if (seen.put.number <= erased_before)
    return wrong("stale: put " + std::to_string(seen.put.number) + ", and " + std::to_string(erased_before) +
                 " was erased");
  return true;
}

void Worker::judge_error(uint32_t key, const Error& error, const char* how) {
  using enum ErrorCode;
  if (error.code == lease_expired && setup_.in_lease()) throw LeaseEnded();
  if (error.code == not_found)
    add(counts_.misses);
  else if (error.code == already_exists || error.code == cancelled)
    add(counts_.passed_over);
  else if (error.code == capacity_exhausted || error.code == busy)
    add(counts_.refused);
  else
    fail(key, std::string(how) + ": " + error.to_string());
}

void Worker::fail(uint32_t key, const std::string& what) {
  ledger_.fail(host_, index_, "key " + std::to_string(key) + ", " + what);
}

}  // namespace terrace::kv_soak
