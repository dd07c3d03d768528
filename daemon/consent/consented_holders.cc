// SPDX-License-Identifier: Apache-2.0
#include "daemon/consent/consented_holders.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/limits.h"
#include "core/base/units.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr int64_t look_ms_min = 1;
constexpr int64_t look_ms_max = 16;

}  // namespace

struct ConsentedHolders::Ending {
  std::string object;
  std::vector<Consent> waited_for;  // killed, and not seen to have ended yet
  HoldersEnded result;
  kj::TimePoint until = kj::origin<kj::TimePoint>();
  int64_t pause_ms = look_ms_min;

  void look() {
    std::erase_if(waited_for, [this](const Consent& one) {
      if (!has_ended(one)) return false;
      result.ended.push_back(one.holder);
      return true;
    });
  }
};

ConsentedHolders::ConsentedHolders(kj::Timer& timer, std::string file, std::string boot_id)
    : timer_(timer), file_(file, boot_id), all_(ConsentFile::read(file, boot_id)) {}

void ConsentedHolders::write(const Status& status) const {
  if (!status.ok())
    log::warn("who agreed to be ended at a fence is not recorded as it is: {}", status.error().to_string());
}

Status ConsentedHolders::agreed(const std::string& object, Consent consent) {
  std::vector<Consent>& known = all_[object];
  const auto same = std::find_if(known.begin(), known.end(),
                                 [&consent](const Consent& one) { return one.same_process(consent); });
  if (same != known.end()) {
    if (same->pidfd == nullptr) same->pidfd = consent.pidfd;
    if (same->spared) spare(object, consent.process, false);
    return {};
  }
  std::weak_ptr<const UniqueFd>& shared = pidfds_[{consent.process.pid, consent.process.started}];
  if (const auto opened = shared.lock()) consent.pidfd = opened;
  shared = consent.pidfd;
  if (pidfds_.size() > 2 * all_.size() + 64)
    std::erase_if(pidfds_, [](const auto& entry) { return entry.second.expired(); });
  if (known.size() % 16 == 15) std::erase_if(known, has_ended);
  known.push_back(std::move(consent));
  Status status = file_.agreed(object, known.back(), all_);
  if (!status.ok()) known.pop_back();
  if (known.empty()) all_.erase(object);
  return status;
}

bool ConsentedHolders::has_agreed(const std::string& object, const ProcessId& process) const {
  const auto at = all_.find(object);
  return at != all_.end() && std::any_of(at->second.begin(), at->second.end(),
                                         [&process](const Consent& one) { return one.process == process; });
}

void ConsentedHolders::spare(const std::string& object, const ProcessId& process, bool spared) {
  const auto at = all_.find(object);
  if (at == all_.end()) return;
  for (Consent& one : at->second) {
    if (one.process != process || one.spared == spared) continue;
    one.spared = spared;
    write(file_.agreed(object, one, all_));
  }
}

void ConsentedHolders::keep_only(const std::set<std::string>& objects) {
  if (std::erase_if(all_, [&objects](const auto& entry) { return !objects.contains(entry.first); }) != 0)
    write(file_.write_anew(all_));
}

void ConsentedHolders::forget(const std::string& object) {
  if (all_.erase(object) != 0) write(file_.forgotten(object, all_));
}

kj::Promise<HoldersEnded> ConsentedHolders::end_holders(const std::string& object) {
  auto ending = kj::heap<Ending>();
  ending->object = object;
  ending->until = timer_.now() + static_cast<int64_t>(limits::holder_end_ns_max) * kj::NANOSECONDS;
  if (const auto at = all_.find(object); at != all_.end()) {
    for (Consent& one : at->second) {
      if (one.spared) continue;
      const EndOf end = end_process(one);
      if (end == EndOf::exempt)
        log::warn(
            "{} agreed to be ended before {} is taken, and cannot be: another user runs it now, or it is out "
            "of "
            "sight; the memory is taken as from holders who go on",
            one.holder, object);
      if (end != EndOf::killed) continue;
      log::info("{} is ended before {} is taken, as it agreed", one.holder, object);
      ending->waited_for.push_back(one);
    }
  }
  return wait(kj::mv(ending));
}

kj::Promise<HoldersEnded> ConsentedHolders::wait(kj::Own<Ending> ending) {
  const bool late = timer_.now() >= ending->until;
  ending->look();
  if (ending->waited_for.empty()) return std::move(ending->result);
  if (late) {
    const Consent& one = ending->waited_for.front();
    ending->result.status =
        Error{.code = ErrorCode::busy,
              .where = "end_holders",
              .detail = shown_with_state(one) + " " + holder_not_ended + " " +
                        format_duration(limits::holder_end_ns_max) +
                        " after it was killed: the kernel keeps it; its memory is taken once it has"};
    return std::move(ending->result);
  }
  const int64_t pause_ms = ending->pause_ms;
  ending->pause_ms = std::min(pause_ms * 2, look_ms_max);
  return timer_.afterDelay(pause_ms * kj::MILLISECONDS).then([this, ending = kj::mv(ending)]() mutable {
    return wait(kj::mv(ending));
  });
}

void end_all_consented(const std::string& file, const std::string& boot_id, uint64_t wait_ns) {
  std::vector<Consent> killed;
  for (auto& [object, consents] : ConsentFile::read(file, boot_id))
    for (Consent consent : consents)
      if (end_process(consent) == EndOf::killed) killed.push_back(std::move(consent));
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait_ns);
  while (!killed.empty()) {
    std::erase_if(killed, has_ended);
    if (killed.empty() || std::chrono::steady_clock::now() >= until) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace terrace::daemon
