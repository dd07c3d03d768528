// SPDX-License-Identifier: Apache-2.0
// A holder for owners_test.py: one Session, one shared_coherent lease with a tensor space in it, whose parts
// the manager gives out. Reads a command a line from stdin and answers each with one line.
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "terrace/tensor_space.h"

using namespace terrace;

namespace {

constexpr uint64_t tensor_bytes = 4096;

std::string named(const Error& error) {
  return std::string("error ") + std::string(error_code_name(error.code)) + " " + error.detail;
}

struct Holder {
  std::unique_ptr<Session> session;
  std::shared_ptr<Lease> lease;
  std::unique_ptr<Mapping> mapping;
  std::unique_ptr<TensorSpace> space;
  std::optional<TensorWrite> write;

  std::string take(Result<std::shared_ptr<Lease>> taken) {
    if (!taken.ok()) return named(taken.error());
    lease = std::move(*taken);
    auto mapped = Mapping::map(lease);
    if (!mapped.ok()) return named(mapped.error());
    mapping = std::move(*mapped);
    return std::to_string(lease->id().value);
  }
  std::string grant(const std::string& label, bool movable) {
    LeaseRequest request;
    request.bytes = 8 * mib;
    request.mode = LeaseMode::shared_coherent;
    request.label = label;
    request.ttl_ns = 600 * ns_per_s;
    request.movable = movable;  // where locks could not follow
    const std::string taken = take(session->grant(request));
    if (mapping == nullptr) return taken;
    const auto info = lease->info();
    if (!info.ok()) return named(info.error());
    SpaceOptions options;
    options.parts = 4;
    options.records_per_part = 64;
    options.coherence = space_coherence(*info);
    const Status made = TensorSpace::format(mapping->bytes(), options);
    return made.ok() ? taken : named(made.error());
  }
  std::string enter(bool own, std::optional<uint32_t> part) {
    auto ownership = ownership_by_manager(lease);
    if (!ownership.ok()) return named(ownership.error());
    auto attached = TensorSpace::attach(mapping->bytes(), {*ownership, own, part, 1});
    if (!attached.ok()) return named(attached.error());
    space = std::move(*attached);
    const std::string kind = space->coherence() == SpaceCoherence::coherent ? "coherent" : "noncoherent";
    return (space->part().has_value() ? std::to_string(*space->part()) : "reads") + " " + kind;
  }
  std::string create(const std::string& name, bool double_buffered) {
    TensorSpec spec;
    spec.name = name;
    spec.dtype = DType::u8;
    spec.shape = {tensor_bytes};
    const auto made = space->create(spec, {.double_buffered = double_buffered});
    return made.ok() ? "ok" : named(made.error());
  }
  std::string publish(const std::string& name, int value) {
    const auto tensor = space->open(name);
    if (!tensor.ok()) return named(tensor.error());
    const std::vector<std::byte> bytes(tensor_bytes, static_cast<std::byte>(value));
    const auto version = space->publish(*tensor, bytes);
    return version.ok() ? "ok" : named(version.error());
  }
  std::string begin(const std::string& name) {
    const auto tensor = space->open(name);
    if (!tensor.ok()) return named(tensor.error());
    auto begun = space->write(*tensor);
    if (!begun.ok()) return named(begun.error());
    write.emplace(std::move(*begun));
    std::memset(write->bytes().data(), 0xee, write->bytes().size() / 2);
    return "ok";
  }
  std::string read(const std::string& name) {
    const auto tensor = space->open(name);
    if (!tensor.ok()) return named(tensor.error());
    std::vector<std::byte> bytes(tensor_bytes);
    const auto version = space->read(*tensor, bytes, 0, 30 * ns_per_s);
    if (!version.ok()) return named(version.error());
    for (const std::byte byte : bytes)
      if (byte != bytes[0]) return "torn";
    return std::to_string(static_cast<int>(bytes[0]));
  }
};

std::string obey(Holder& holder, std::istringstream& words) {
  std::string verb, name;
  words >> verb;
  uint32_t part = 0;
  uint64_t epoch = 0;
  if (verb == "grant") return words >> name, holder.grant(name, true);
  if (verb == "grant-fixed") return words >> name, holder.grant(name, false);
  if (verb == "attach")
    return words >> name, holder.take(holder.session->attach({}, name, LeaseAccess::read_write));
  if (verb == "attach-read")
    return words >> name, holder.take(holder.session->attach({}, name, LeaseAccess::read_only));
  if (verb == "own") return holder.enter(true, (words >> part) ? std::optional(part) : std::nullopt);
  if (verb == "watch") return holder.enter(false, std::nullopt);
  if (verb == "leave") return holder.space.reset(), "ok";
  if (verb == "create") return words >> name, holder.create(name, true);
  if (verb == "create-single") return words >> name, holder.create(name, false);
  if (verb == "publish") return words >> name >> part, holder.publish(name, static_cast<int>(part));
  if (verb == "begin") return words >> name, holder.begin(name);
  if (verb == "read") return words >> name, holder.read(name);
  if (verb == "claim") {
    words >> part >> epoch;
    const auto claimed = holder.lease->claim_part(part, 0, epoch);
    return claimed.ok() ? std::to_string(*claimed) : named(claimed.error());
  }
  if (verb == "release") {
    words >> part >> epoch;
    const Status released = holder.lease->release_part(part, epoch);
    return released.ok() ? "ok" : named(released.error());
  }
  if (verb == "dead") {
    words >> part >> epoch;
    const auto dead = holder.lease->part_is_dead(part, epoch);
    return dead.ok() ? (*dead ? "yes" : "no") : named(dead.error());
  }
  if (verb == "connected") return holder.session->connected() ? "yes" : "no";
  return "error: what is " + verb + "?";
}

}  // namespace

int main() {
  Holder holder;
  auto session = Session::connect();
  if (!session.ok()) {
    std::cout << named(session.error()) << std::endl;
    return 1;
  }
  holder.session = std::move(*session);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::cout << obey(holder, words) << std::endl;
  }
  holder.write.reset();
  holder.space.reset();
  return 0;
}
