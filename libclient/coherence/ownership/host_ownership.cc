// SPDX-License-Identifier: Apache-2.0
// Ownership of parts by host: a fixed range of parts a host, locks of the kernel within one.
#include "terrace/host_ownership.h"

#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <span>
#include <string>
#include <utility>

#include "core/base/clock.h"
#include "core/base/crc32c.h"
#include "core/layout/tensor_space.h"

namespace terrace {
namespace {

constexpr const char* where = "ownership_by_host_ranges";
constexpr uint8_t nobody = 0xff;
constexpr auto repeat_no = std::chrono::milliseconds(1);

using HostOfPart = std::array<uint8_t, layout::space_parts_max>;

// Epochs, from bit 63 on: a 1, which no other kind of source gives; a number from 1; the domain; the host.
constexpr unsigned host_bits = 6, domain_bits = 20, number_bits = 63 - domain_bits - host_bits;
constexpr uint64_t number_max = (uint64_t{1} << number_bits) - 1;
static_assert(space_hosts_max == 1u << host_bits && host_epochs_from == uint64_t{1} << 63);

uint64_t epoch_of(uint64_t number, uint32_t domain, uint32_t host) {
  return host_epochs_from | number << (domain_bits + host_bits) | uint64_t{domain} << host_bits | host;
}
uint32_t host_of(uint64_t epoch) {
  return static_cast<uint32_t>(epoch % space_hosts_max);
}
uint32_t domain_of(uint64_t epoch) {
  return static_cast<uint32_t>(epoch >> host_bits) % (1u << domain_bits);
}
uint64_t number_of(uint64_t epoch) {
  return epoch >> (domain_bits + host_bits) & number_max;
}
bool by_a_host(uint64_t epoch) {
  return epoch >= host_epochs_from;
}

std::string named(uint32_t host) {
  return "host " + std::to_string(host);
}

Error refuse(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

Result<HostOfPart> assign(const std::vector<HostRange>& ranges) {
  HostOfPart owner;
  owner.fill(nobody);
  for (const HostRange& range : ranges) {
    if (range.host >= space_hosts_max)
      return refuse(ErrorCode::invalid_argument,
                    named(range.host) + ": hosts have the numbers 0 to " + std::to_string(space_hosts_max - 1));
    if (range.parts == 0 || range.first_part >= owner.size() || range.parts > owner.size() - range.first_part)
      return refuse(ErrorCode::invalid_argument, named(range.host) + ": " + std::to_string(range.parts) +
                                                     " parts from part " + std::to_string(range.first_part) +
                                                     " on is no range of parts 0 to " +
                                                     std::to_string(owner.size() - 1));
    for (uint32_t part = range.first_part; part < range.first_part + range.parts; ++part) {
      if (owner[part] != nobody)
        return refuse(ErrorCode::invalid_argument, "part " + std::to_string(part) + " is given to " +
                                                       named(owner[part]) + " and to " + named(range.host) +
                                                       ": ranges of parts must not overlap");
      owner[part] = static_cast<uint8_t>(range.host);
    }
  }
  return owner;
}

// "0 to 3, 8"
std::string parts_of(const HostOfPart& owner, uint32_t host) {
  std::string text;
  for (uint32_t part = 0; part < owner.size(); ++part) {
    if (owner[part] != host) continue;
    uint32_t last = part;
    while (last + 1 < owner.size() && owner[last + 1] == host) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(part);
    if (last > part) text += " to " + std::to_string(last);
    part = last;
  }
  return text;
}

// Which kernel's locks on which inode exclude whom: a hash of both. Locks that another domain has are not seen.
Result<uint32_t> lock_domain(int fd) {
  const std::string boot = read_boot_id();
  if (boot.empty())
    return refuse(
        ErrorCode::unavailable,
        "cannot read /proc/sys/kernel/random/boot_id, which tells this host from another: mount /proc");
  struct stat file {};
  if (::fstat(fd, &file) != 0) return os_error(errno, where, "cannot look at the space's file");
  const std::string text = boot + " " + std::to_string(file.st_dev) + " " + std::to_string(file.st_ino);
  return crc32c(std::as_bytes(std::span(text))) % (1u << domain_bits);
}

class HostOwnership final : public OwnershipSource {
 public:
  HostOwnership(std::shared_ptr<OwnershipSource> within_host, const HostOfPart& host_of_part, uint32_t domain,
                HostOwnershipOptions options)
      : within_host_(std::move(within_host)),
        host_of_part_(host_of_part),
        host_(options.host),
        domain_(domain),
        restarted_(options.restarted),
        is_gone_(std::move(options.is_gone)) {}

  Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
    return claim_after(part, [&] { return LastOwner{.epoch = last_epoch()}; });
  }

  Result<uint64_t> claim_after(uint32_t part, const std::function<LastOwner()>& last_owner) override {
    if (!ours(part)) return another_hosts(part);
    LastOwner last;
    const Result<uint64_t> taken = within_host_->claim(part, [&] {
      last = last_owner();
      return uint64_t{0};  // its epochs are not used
    });
    if (!taken.ok()) {
      Error error = taken.error();
      error.detail += "; " + named(host_) + " has parts " + parts_of(host_of_part_, host_);
      return error;
    }
    const Result<uint64_t> next = epoch_after(last, part);
    if (!next.ok()) within_host_->release(part);
    return next;
  }

  void release(uint32_t part) override {
    if (ours(part)) within_host_->release(part);
  }

  SpaceOwnership kind() const override { return SpaceOwnership::hosts; }

  // Of this host's processes its kernel knows. Their stores are in the caches that all of them share, so there
  // is nothing to wait for. Of another host's nothing is known before that host is gone as a whole; nor of who
  // has this host's number elsewhere.
  bool is_dead(uint32_t part, uint64_t epoch) override {
    if (epoch != 0) {
      if (!by_a_host(epoch)) return false;
      if (host_of(epoch) != host_) return gone_of_late(host_of(epoch));
      if (!of_this_host(epoch)) return false;
    }
    return ours(part) && within_host_->is_dead(part, epoch);
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool of_this_host(uint64_t epoch) const { return domain_of(epoch) == domain_ || restarted_; }
  bool gone(uint32_t host) const { return is_gone_ && is_gone_(host); }

  // Who waits for another asks in a loop: a "no" is good for a moment, as it may be out of date anyway.
  bool gone_of_late(uint32_t host) {
    std::atomic<int64_t>& there_until = there_until_[host];
    if (Clock::now().time_since_epoch().count() < there_until.load(std::memory_order_relaxed)) return false;
    if (gone(host)) return true;
    there_until.store((Clock::now() + repeat_no).time_since_epoch().count(), std::memory_order_relaxed);
    return false;
  }

  bool ours(uint32_t part) const { return part < host_of_part_.size() && host_of_part_[part] == host_; }

  Error another_hosts(uint32_t part) const {
    const uint8_t owner = part < host_of_part_.size() ? host_of_part_[part] : nobody;
    bool any_free = false;
    for (uint32_t own = 0; own < host_of_part_.size(); ++own)
      any_free = any_free || (ours(own) && within_host_->is_dead(own, 0));
    return refuse(ErrorCode::busy, "part " + std::to_string(part) + " is " +
                                       (owner == nobody ? "no host's" : named(owner) + "'s") + "; this is " +
                                       named(host_) + ", with parts " + parts_of(host_of_part_, host_) +
                                       (any_free ? "" : ", which all have owners that live"));
  }

  Result<uint64_t> epoch_after(const LastOwner& last, uint32_t part) const {
    const std::string who = "part " + std::to_string(part);
    if (last.epoch == 0) return epoch_of(1, domain_, host_);
    if (!by_a_host(last.epoch))
      return refuse(ErrorCode::permission_denied,
                    who + " had an owner by another kind of source (epoch " + std::to_string(last.epoch) +
                        "): all holders of a space use the same kind; format it anew to change that");
    const uint32_t host = host_of(last.epoch);
    if (host != host_ && !gone(host))
      return refuse(ErrorCode::permission_denied,
                    who + " is " + named(host_) + "'s here, but its last owner was a process of " +
                        named(host) + ": the hosts' ranges overlap. Give all of them the same ones; " +
                        "parts change hosts only once is_gone says of the other that it is gone");
    if (host == host_ && !last.gave_back && !of_this_host(last.epoch)) return owned_elsewhere(who);
    if (number_of(last.epoch) == number_max)
      return refuse(ErrorCode::limit_exceeded, who + " has had its last epoch: format the space anew");
    return epoch_of(number_of(last.epoch) + 1, domain_, host_);
  }

  Error owned_elsewhere(const std::string& who) const {
    return refuse(ErrorCode::already_exists,
                  who + " is owned by a process that has the number of this host, " + std::to_string(host_) +
                      ", but is not of this boot of this machine, or has the memory by another file or device "
                      "node. Give each machine a number of its own, and all processes of one the same node. If "
                      "it was this host, before it was restarted or the node was made anew, say so with "
                      "HostOwnershipOptions::restarted");
  }

  const std::shared_ptr<OwnershipSource> within_host_;  // answers by part
  const HostOfPart host_of_part_;
  const uint32_t host_;
  const uint32_t domain_;
  const bool restarted_;
  const std::function<bool(uint32_t)> is_gone_;
  std::array<std::atomic<int64_t>, space_hosts_max> there_until_{};  // by Clock: that host was not gone
};

}  // namespace

Result<std::vector<HostRange>> equal_host_ranges(uint32_t parts, uint32_t hosts) {
  if (hosts == 0 || parts < hosts || parts > layout::space_parts_max)
    return refuse(ErrorCode::invalid_argument, std::to_string(parts) + " parts for " + std::to_string(hosts) +
                                                   " hosts: each host needs one, and a space has at most " +
                                                   std::to_string(layout::space_parts_max));
  std::vector<HostRange> ranges;
  uint32_t first = 0;
  for (uint32_t host = 0; host < hosts; ++host) {
    const uint32_t count = parts / hosts + (host < parts % hosts ? 1 : 0);
    ranges.push_back({.host = host, .first_part = first, .parts = count});
    first += count;
  }
  return ranges;
}

Result<std::shared_ptr<OwnershipSource>> ownership_by_host_ranges(int fd, HostOwnershipOptions options) {
  TERRACE_ASSIGN_OR_RETURN(const HostOfPart owner, assign(options.ranges));
  if (options.host >= space_hosts_max || parts_of(owner, options.host).empty())
    return refuse(ErrorCode::invalid_argument,
                  named(options.host) + " is none of the hosts that were given a range of parts");
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<OwnershipSource> locks,
                           ownership_by_locks(fd, options.space_offset));
  TERRACE_ASSIGN_OR_RETURN(const uint32_t domain, lock_domain(fd));
  return std::shared_ptr<OwnershipSource>(
      std::make_shared<HostOwnership>(std::move(locks), owner, domain, std::move(options)));
}

}  // namespace terrace
