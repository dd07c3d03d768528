// Ownership of parts by host: a fixed range of parts a host, locks of the kernel within one.
#include "terrace/host_ownership.h"

#include <array>
#include <string>
#include <utility>

#include "core/layout/tensor_space.h"

namespace terrace {
namespace {

constexpr const char* where = "ownership_by_host_ranges";
constexpr uint8_t nobody = 0xff;

using HostOfPart = std::array<uint8_t, layout::space_parts_max>;

static_assert((space_hosts_max & (space_hosts_max - 1)) == 0);

// Epochs: the host in the lower bits, a number from 1 above them.
uint32_t host_of(uint64_t epoch) {
  return static_cast<uint32_t>(epoch % space_hosts_max);
}
bool by_a_host(uint64_t epoch) {
  return epoch >= space_hosts_max;
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

class HostOwnership final : public OwnershipSource {
 public:
  HostOwnership(std::shared_ptr<OwnershipSource> within_host, const HostOfPart& host_of_part, uint32_t host,
                std::function<bool(uint32_t)> is_gone)
      : within_host_(std::move(within_host)),
        host_of_part_(host_of_part),
        host_(host),
        is_gone_(std::move(is_gone)) {}

  Result<uint64_t> claim(uint32_t part, const std::function<uint64_t()>& last_epoch) override {
    if (!ours(part)) return another_hosts(part);
    uint64_t last = 0;
    const Result<uint64_t> taken = within_host_->claim(part, [&] { return last = last_epoch(); });
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

  // Of this host's processes its kernel knows. Their stores are in the caches that all of them share, so there
  // is nothing to wait for. Of another host's nothing is known before that host is gone as a whole.
  bool is_dead(uint32_t part, uint64_t epoch) override {
    if (by_a_host(epoch) && host_of(epoch) != host_) return is_gone_ && is_gone_(host_of(epoch));
    return ours(part) && within_host_->is_dead(part, epoch);
  }

 private:
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

  Result<uint64_t> epoch_after(uint64_t last, uint32_t part) const {
    const std::string who = "part " + std::to_string(part);
    if (last != 0 && !by_a_host(last))
      return refuse(ErrorCode::permission_denied,
                    who + " had an owner by another kind of source (epoch " + std::to_string(last) +
                        "): all holders of a space use the same kind; format it anew to change that");
    if (last != 0 && host_of(last) != host_ && !(is_gone_ && is_gone_(host_of(last))))
      return refuse(ErrorCode::permission_denied,
                    who + " is " + named(host_) + "'s here, but its last owner was a process of " +
                        named(host_of(last)) + ": the hosts' ranges overlap. Give all of them the same ones; " +
                        "parts change hosts only once is_gone says of the other that it is gone");
    if (last / space_hosts_max >= UINT64_MAX / space_hosts_max)
      return refuse(ErrorCode::limit_exceeded,
                    who + " has had epoch " + std::to_string(last) + ", the last one: format the space anew");
    return (last / space_hosts_max + 1) * space_hosts_max + host_;
  }

  const std::shared_ptr<OwnershipSource> within_host_;  // answers by part; its epochs are not used
  const HostOfPart host_of_part_;
  const uint32_t host_;
  const std::function<bool(uint32_t)> is_gone_;
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
  return std::shared_ptr<OwnershipSource>(
      std::make_shared<HostOwnership>(std::move(locks), owner, options.host, std::move(options.is_gone)));
}

}  // namespace terrace
