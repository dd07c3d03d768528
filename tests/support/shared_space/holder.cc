// SPDX-License-Identifier: Apache-2.0
#include "tests/support/shared_space/holder.h"

#include <sched.h>

#include <cstring>

namespace terrace::shared_space {
namespace {

// Longer than any reader races with a writer, on a busy machine: that it waits for one who is dead would be a
// defect.
constexpr uint64_t patience_ns = 20'000'000'000;
constexpr uint64_t turn_ns = 5'000'000;

}  // namespace

void Holder::write_on() {
  for (;;) {
    write(static_cast<uint32_t>(prng_.below(tensors)));
    ++ledger_.steps;
    if (prng_.chance(1, 4)) ::sched_yield();
  }
}

void Holder::read_on() {
  for (;;) {
    // The other host's more often: that is what is asked here.
    const uint32_t host = prng_.chance(2, 3) ? 1 - setup_.host : setup_.host;
    const auto index = static_cast<uint32_t>(prng_.below(tensors));
    if (prng_.chance(1, 2))
      read(host, index);
    else
      pin(host, index);
    ++ledger_.steps;
  }
}

void Holder::read_all() {
  for (uint32_t host = 0; host < hosts; ++host)
    for (uint32_t index = 0; index < tensors; ++index) read(host, index);
}

Result<SharedTensor> Holder::find_or_create(uint32_t index) {
  const std::string name = tensor_name(setup_.host, index);
  Result<SharedTensor> tensor = space_.open(name);
  if (tensor.ok() || tensor.error().code != ErrorCode::not_found) return tensor;
  if (ledger_.seen[setup_.host][index] != 0) fail(name + " was published and is not found by its writer");
  return space_.create({.name = name, .dtype = DType::u64, .shape = {tensor_words[index]}},
                       {.double_buffered = index != single_slot});
}

void Holder::write(uint32_t index) {
  const uint32_t host = setup_.host;
  const std::string name = tensor_name(host, index);
  const Result<SharedTensor> tensor = find_or_create(index);
  if (!tensor.ok()) return fail(name + ", writer: " + tensor.error().to_string());
  // A writer that was killed may have published what it did not write down any more.
  std::vector<std::byte> last(tensor->bytes());
  const uint64_t floor = ledger_.seen[host][index];
  if (const Result<uint64_t> version = space_.read(*tensor, last); version.ok())
    (void)judge(last, host, index, floor, "its writer reads");
  else
    judge_error(version.error(), host, index, floor, "its writer reads");

  Content content{.number = ledger_.seen[host][index] + 1};
  for (uint32_t of = 0; of < hosts; ++of)
    for (uint32_t at = 0; at < tensors; ++at) content.known[of][at] = ledger_.seen[of][at];
  if (setup_.fault != Fault::none && prng_.chance(1, 8)) return plant(*tensor, index, content.number);
  const std::vector<uint64_t> words = compose(host, index, content);
  Result<TensorWrite> writing = space_.write(*tensor, turn_ns);
  if (!writing.ok()) {
    if (writing.error().code != ErrorCode::busy) fail(name + ", writing: " + writing.error().to_string());
    return;  // somebody reads it in place
  }
  fill(writing->bytes(), words);
  if (prng_.chance(1, 16)) {
    ++ledger_.given_up;
    return;  // destroyed: the content stays, or is lost where it has one slot
  }
  writing->publish();
  ledger_.saw(host, index, content.number);
  ++ledger_.publications;
}

// In two halves with a pause between, so that kills and readers find it half-written.
void Holder::fill(std::span<std::byte> bytes, std::span<const uint64_t> words) {
  const size_t half = words.size() / 2 * sizeof(uint64_t);
  std::memcpy(bytes.data(), words.data(), half);
  if (prng_.chance(1, 4)) ::sched_yield();
  std::memcpy(bytes.data() + half, std::as_bytes(words).data() + half, bytes.size() - half);
}

std::optional<SharedTensor> Holder::find(uint32_t host, uint32_t index, uint64_t floor) {
  Result<SharedTensor> tensor = space_.open(tensor_name(host, index));
  if (tensor.ok()) return *std::move(tensor);
  if (floor != 0 || tensor.error().code != ErrorCode::not_found)
    fail(tensor_name(host, index) + ", opening: " + tensor.error().to_string());
  return std::nullopt;
}

void Holder::read(uint32_t host, uint32_t index) {
  const uint64_t floor = ledger_.seen[host][index];
  const std::optional<SharedTensor> tensor = find(host, index, floor);
  if (!tensor) return;
  std::vector<std::byte> copy(tensor->bytes());
  const Result<uint64_t> version =
      space_.read(*tensor, copy, 0, floor == 0 || index == single_slot ? turn_ns : patience_ns);
  if (!version.ok()) return judge_error(version.error(), host, index, floor, "read");
  ++ledger_.reads[host][index];
  const std::optional<uint64_t> number = judge(copy, host, index, floor, "read");
  if (!number) return;
  // "My copy is still the newest" must not be said of one that is older than what this host had seen before.
  const uint64_t newest = ledger_.seen[host][index];
  if (space_.is_current(*tensor, *version) && *number < newest)
    fail(tensor_name(host, index) + ": number " + std::to_string(*number) +
         " is said to be current, stale: " + std::to_string(newest) + " was seen");
  ++ledger_.checks;
}

void Holder::pin(uint32_t host, uint32_t index) {
  const uint64_t floor = ledger_.seen[host][index];
  const std::optional<SharedTensor> tensor = find(host, index, floor);
  if (!tensor) return;
  const Result<TensorPin> pin = space_.pin(*tensor, floor == 0 || index == single_slot ? turn_ns : patience_ns);
  if (!pin.ok()) return judge_error(pin.error(), host, index, floor, "in place");
  ++ledger_.pins[host][index];
  const std::optional<uint64_t> number = judge(pin->bytes(), host, index, floor, "in place");
  if (!number) return;
  ::sched_yield();
  std::string why;
  const std::optional<Content> later = examine(pin->bytes(), host, index, &why);
  if (!later || later->number != *number)
    fail(tensor_name(host, index) + ", pinned at number " + std::to_string(*number) +
         ", later: " + (later ? "torn: number " + std::to_string(later->number) : why));
}

std::optional<uint64_t> Holder::judge(std::span<const std::byte> bytes, uint32_t host, uint32_t index,
                                      uint64_t floor, const char* how) {
  std::string why;
  const std::optional<Content> content = examine(bytes, host, index, &why);
  if (!content) {
    fail(tensor_name(host, index) + ", " + how + ": " + why);
    return std::nullopt;
  }
  if (content->number < floor) {
    fail(tensor_name(host, index) + ", " + how + ": stale: number " + std::to_string(content->number) +
         " after " + std::to_string(floor) + " was seen");
    return std::nullopt;
  }
  if (ledger_.saw(host, index, content->number) && host != setup_.host) ++ledger_.news;
  // Published before this was: whoever looks from now on must see it.
  for (uint32_t of = 0; of < hosts; ++of)
    for (uint32_t at = 0; at < tensors; ++at)
      if (ledger_.saw(of, at, content->known[of][at]) && of != setup_.host) ++ledger_.news;
  return content->number;
}

// Busy is right for a tensor without content, and for one with one slot while it is written; and also for the
// writer, who does not wait. Nothing else is an answer to who knows that there is content.
void Holder::judge_error(const Error& error, uint32_t host, uint32_t index, uint64_t floor, const char* how) {
  const bool without = error.code == ErrorCode::busy || error.code == ErrorCode::unavailable;
  if (without && (floor == 0 || index == single_slot)) {
    ++ledger_.without_content;
    return;
  }
  fail(tensor_name(host, index) + ", " + how + ": " + error.to_string());
}

void Holder::plant(const SharedTensor& tensor, uint32_t index, uint64_t number) {
  const std::vector<uint64_t> words = compose(setup_.host, index, {.number = number});
  if (setup_.fault == Fault::in_place) {
    const Result<TensorPin> pin = space_.pin(tensor);
    if (!pin.ok()) return;
    auto* const at = const_cast<std::byte*>(pin->bytes().data());
    std::memcpy(at, words.data(), words.size() / 2 * sizeof(uint64_t));
    return;
  }
  Result<TensorWrite> writing = space_.write(tensor, turn_ns);
  if (!writing.ok()) return;
  if (setup_.fault == Fault::old) {
    const std::vector<uint64_t> before =
        compose(setup_.host, index, {.number = number > 3 ? number - 3 : number});
    fill(writing->bytes(), before);
    writing->publish();
    return;
  }
  const std::span<std::byte> bytes = writing->bytes();
  std::memcpy(bytes.data(), words.data(), bytes.size() / 2);
  writing->publish();
  ::sched_yield();
  std::memcpy(bytes.data(), words.data(), bytes.size());
}

}  // namespace terrace::shared_space
