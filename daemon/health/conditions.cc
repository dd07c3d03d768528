// SPDX-License-Identifier: Apache-2.0
// Which facts are worth an operator's time: one function for what belongs together. Each says what is wrong with
// figures, and what to do; docs/operations/health.md says the same at length.
#include <algorithm>
#include <utility>

#include "daemon/health/health_engine.h"
#include "daemon/health/words.h"

namespace terrace::daemon {
namespace {

// A certificate that ends within so many days keeps agents out before anybody is back from a holiday.
constexpr int64_t critical_days = 3;
// A few slow commits are a disk's ordinary life.
constexpr uint64_t slow_commits_min = 3;
constexpr uint64_t stuck_commits = 100;  // as many times the limit: one that never seems to end

}  // namespace

void HealthEngine::look_at_store(const HealthView& view, uint64_t now_ns) {
  const HealthView::Store& store = view.store;
  if (!store.serving) {
    holds({.code = HealthCode::store_failing,
           .severity = HealthSeverity::critical,
           .kind = "store",
           .text = "the state cannot be written, and calls are refused: " + store.refusal,
           .advice =
               "make room on its file system, or repair that; the manager goes on by itself, and holders of "
               "leases notice nothing"});
  }
  const uint64_t slow = slow_commits_.note(store.slow_commits, now_ns);
  const uint64_t all = commits_.note(store.commits, now_ns);
  const bool known = is_raised(HealthCode::store_slow, "store", "");
  const bool stuck = store.commit_for_ns / stuck_commits >= limits_.commit_max_ns;
  if (stuck || (known ? slow > 0 : slow >= slow_commits_min && slow >= all / 100)) {
    std::string text = std::to_string(slow) + " of " + many(all, "commit") + " in the last " +
                       lasted(limits_.window_ns) + " took longer than " + lasted(limits_.commit_max_ns) +
                       "; the slowest ever " + lasted(store.slowest_commit_ns);
    if (stuck) text += "; one has been under way for " + lasted(store.commit_for_ns);
    holds({.code = HealthCode::store_slow,
           .severity = stuck ? HealthSeverity::critical : HealthSeverity::warning,
           .kind = "store",
           .text = std::move(text),
           .advice = "every grant waits for a commit: see what else uses the disk of the state (iostat -x), or "
                     "move the state to a faster one"});
  }
  look_at_room(view);
}

// What the journal still takes, the disk need not have: both are left before nothing is granted any more.
void HealthEngine::look_at_room(const HealthView& view) {
  if (!view.disk.has_value()) return;
  const HealthView::Store& store = view.store;
  const uint64_t least = with_slack(limits_.state_free_bytes_min, HealthCode::state_disk_filling, "store", "");
  if (view.disk->free_bytes >= least) return;
  const uint64_t journal_left = store.journal_bytes - std::min(store.journal_bytes, store.journal_used_bytes);
  const bool last = view.disk->free_bytes < limits_.state_free_bytes_min / 4 ||
                    (store.journal_bytes != 0 && journal_left < store.journal_bytes / 2);
  holds({.code = HealthCode::state_disk_filling,
         .severity = last ? HealthSeverity::critical : HealthSeverity::warning,
         .kind = "store",
         .text = "the file system of " + view.disk->path + " has " + format_size(view.disk->free_bytes) +
                 " left" +
                 (store.journal_bytes == 0 ? std::string()
                                           : ", and the journal " + format_size(journal_left) + " of " +
                                                 format_size(store.journal_bytes)) +
                 "; when both are full, nothing is granted any more",
         .advice = "make room there, or move the state to a larger file system"});
}

void HealthEngine::look_at_devices(const HealthView& view) {
  for (const HealthView::Device& device : view.devices) {
    if (device.absent) {
      const bool used = device.used_bytes != 0;
      holds({.code = HealthCode::device_absent,
             .severity = used ? HealthSeverity::critical : HealthSeverity::warning,
             .kind = "device",
             .name = device.serial,
             .text =
                 "adopted" + (device.pool.empty() ? std::string() : ", of pool " + device.pool) +
                 ", and not there" +
                 (used ? "; leases had " + format_size(device.used_bytes) + " of it" : "; no lease was on it"),
             .advice = "bring it back, or give it up: `terrace device fail " + device.serial +
                       "`, then `terrace device remove " + device.serial + " --forget-quarantined`"});
    }
    if (device.draining && device.used_bytes != 0) {
      holds(
          {.code = HealthCode::device_draining,
           .kind = "device",
           .name = device.serial,
           .text = "is being drained, and leases still have " + format_size(device.used_bytes) + " of it",
           .advice = "`terrace device drain " + device.serial +
                     "` names the leases that do not go by themselves and why; revoke them, or `terrace device "
                     "undrain " +
                     device.serial + "`"},
          limits_.draining_after_ns);
    }
  }
  for (const HealthView::Memdev& memdev : view.memdevs) {
    if (memdev.health.empty() || memdev.health == "ok" || memdev.health.rfind("not readable", 0) == 0) continue;
    holds({.code = HealthCode::device_unhealthy,
           .severity = HealthSeverity::critical,
           .kind = "memdev",
           .name = memdev.serial,
           .text = "says of itself: " + memdev.health,
           .advice =
               "drain the devices that are made of it (`terrace device list`, `terrace device drain`), and "
               "have it replaced"});
  }
}

void HealthEngine::look_at_pools(const HealthView& view, uint64_t now_ns) {
  for (const HealthView::Pool& pool : view.pools) {
    // No more than there can be: an empty pool is not nearly full.
    const uint64_t least =
        std::min(pool.capacity_bytes, with_slack(pool.capacity_bytes / 100 * limits_.pool_grantable_percent_min,
                                                 HealthCode::pool_nearly_full, "pool", pool.name));
    if (pool.grantable_bytes < least) {
      holds(
          {.code = HealthCode::pool_nearly_full,
           .kind = "pool",
           .name = pool.name,
           .text = format_size(pool.grantable_bytes) + " of " + format_size(pool.capacity_bytes) +
                   " can be granted",
           .advice = "add a device (`terrace pool add-device`), end drains, bring absent devices back, or see "
                     "who has it: `terrace lease list --pool " +
                     pool.name + "`"});
    }
    const uint64_t longest = std::min(
        pool.grantable_bytes, with_slack(pool.grantable_bytes / 100 * limits_.pool_largest_run_percent_min,
                                         HealthCode::pool_fragmented, "pool", pool.name));
    if (pool.grantable_bytes != 0 && pool.longest_runs_bytes < longest) {
      holds({.code = HealthCode::pool_fragmented,
             .kind = "pool",
             .name = pool.name,
             .text = "of " + format_size(pool.grantable_bytes) + " free, the longest runs of its devices are " +
                     format_size(pool.longest_runs_bytes) + " together",
             .advice = "`terrace pool compact " + pool.name + " --run SIZE` moves movable leases together"});
    }
    const uint64_t waited_ns =
        pool.waiting != 0 && pool.oldest_wait_ns != 0 ? now_ns - std::min(now_ns, pool.oldest_wait_ns) : 0;
    if (pool.waiting != 0 && waited_ns >= limits_.queue_after_ns) {
      holds(
          {.code = HealthCode::queue_stuck,
           .kind = "pool",
           .name = pool.name,
           .text = many(pool.waiting, "grant") + " for " + format_size(pool.waiting_bytes) +
                   (pool.waiting == 1 ? " waits" : " wait") + ", the oldest for " + lasted(waited_ns),
           .advice =
               "`terrace queue list --pool " + pool.name +
               "` shows them; release or revoke leases, add a device, or refuse one: `terrace queue cancel`"});
    }
    look_at_quarantine(pool, now_ns);
  }
  std::erase_if(quarantines_, [&view](const auto& known) {
    return std::none_of(view.pools.begin(), view.pools.end(),
                        [&known](const HealthView::Pool& pool) { return pool.name == known.first; });
  });
  looked_at_pools_ = true;
}

// What was quarantined before the first look is no growth: whoever started the manager was told of it. A pool that was
// made since began with none.
void HealthEngine::look_at_quarantine(const HealthView::Pool& pool, uint64_t now_ns) {
  const uint64_t before = looked_at_pools_ ? 0 : pool.quarantined_bytes;
  Quarantine& known = quarantines_.try_emplace(pool.name, Quarantine{before, 0}).first->second;
  if (pool.quarantined_bytes > known.bytes) known.grew_ns = now_ns;
  known.bytes = pool.quarantined_bytes;
  if (known.grew_ns == 0 || known.bytes == 0 || now_ns - known.grew_ns >= limits_.window_ns) return;
  holds({.code = HealthCode::quarantine_growing,
         .kind = "pool",
         .name = pool.name,
         .text = format_size(known.bytes) + " could not be fenced or erased and is kept out of use; it grew " +
                 lasted(now_ns - known.grew_ns) + " ago",
         .advice = "`terrace lease quarantined` says why, and what to do for each"});
}

void HealthEngine::look_at_erasing(const HealthView& view, uint64_t now_ns) {
  if (erasing_.note(view.scrub.erased_bytes, view.scrub.queued_bytes, now_ns)) {
    holds({.code = HealthCode::scrub_behind,
           .kind = "manager",
           .text = format_size(view.scrub.queued_bytes) + " wait to be erased, some of it for longer than " +
                   lasted(limits_.scrub_after_ns),
           .advice = "raise [scrub] bytes_per_s where it is set; a host that is away holds its own up; the log "
                     "names what is tried again"});
  }
  if (failed_fences_.note(view.fences.failed, now_ns) > 0) {
    holds({.code = HealthCode::fence_failed,
           .severity = HealthSeverity::critical,
           .kind = "manager",
           .text = many(view.fences.failed, "lease") +
                   " could not be fenced since the start; the last: " + view.fences.last_failure,
           .advice = "its memory is quarantined and nobody else gets it, but its holder may still reach it: "
                     "`terrace lease quarantined`"});
  }
  if (view.fences.oldest_lease != 0 && view.fences.oldest_for_ns >= limits_.fence_after_ns) {
    holds({.code = HealthCode::fence_slow,
           .kind = "manager",
           .text = many(view.fences.under_way, "fence") + " under way, that of lease " +
                   std::to_string(view.fences.oldest_lease) + " for " + lasted(view.fences.oldest_for_ns),
           .advice = "the log says what it waits for; a fence on a host that is away ends with its host lease "
                     "(`terrace host list`)"});
  }
}

void HealthEngine::look_at_hosts(const HealthView& view) {
  for (const HealthView::Host& host : view.hosts) {
    const std::string silence = host.silent_ns == 0 ? "not heard of since the manager's start"
                                                    : "not heard of for " + lasted(host.silent_ns);
    if (host.state != HealthView::HostState::connected) {
      const bool fenced = host.state == HealthView::HostState::self_fenced;
      holds({.code = HealthCode::host_away,
             .kind = "host",
             .name = host.name,
             .text = silence +
                     (fenced ? "; its leases have ended" : "; its leases end in " + lasted(host.lease_left_ns)),
             .advice =
                 "see whether its terraced runs and reaches this manager; one that is gone for good: `terrace "
                 "host remove " +
                 host.name + "`"},
            limits_.away_after_ns);
    }
    if (host.state == HealthView::HostState::away && host.lease_left_ns < host.lease_ns / 2) {
      holds({.code = HealthCode::host_lease_running_out,
             .severity = HealthSeverity::critical,
             .kind = "host",
             .name = host.name,
             .text = silence + ", and more than half of its host lease is gone: its leases end in " +
                     lasted(host.lease_left_ns),
             .advice = "bring the connection or its terraced back before that; its programs lose their memory "
                       "otherwise"});
    }
    if (host.state == HealthView::HostState::connected && !host.version.empty() &&
        host.version != view.version) {
      holds({.code = HealthCode::host_version_differs,
             .kind = "host",
             .name = host.name,
             .text = "its agent is of version " + host.version + ", this manager of " + view.version,
             .advice = "upgrade the older one; what both know works meanwhile"});
    }
    if (host.state == HealthView::HostState::connected && host.certificate_ends_soon) {
      holds({.code = HealthCode::certificate_ending,
             .severity = host.certificate_days_left <= critical_days ? HealthSeverity::critical
                                                                     : HealthSeverity::warning,
             .kind = "host",
             .name = host.name,
             .text = "the certificate of its agent " + days(host.certificate_days_left),
             .advice = "`terrace cert issue " + host.name +
                       "`, and put the files in place of the old ones; they "
                       "are read again by themselves"});
    }
  }
}

void HealthEngine::look_at_certificates(const HealthView& view) {
  for (const HealthView::Certificate& one : view.certificates) {
    if (!one.ends_soon) continue;
    holds({.code = HealthCode::certificate_ending,
           .severity = one.days_left <= critical_days ? HealthSeverity::critical : HealthSeverity::warning,
           .kind = one.what,
           .name = one.name,
           .text = "the " + one.what + " " + one.name + " " + days(one.days_left),
           .advice = "renew it with `terrace cert`; the files are read again by themselves"});
  }
  for (const HealthView::Certificate& one : view.clients) {
    if (!one.ends_soon) continue;
    holds({.code = HealthCode::certificate_ending,
           .severity = one.days_left <= critical_days ? HealthSeverity::critical : HealthSeverity::warning,
           .kind = one.what,
           .name = one.name,
           .text = "the certificate of client " + one.name + " " + days(one.days_left),
           .advice =
               "`terrace cert client " + one.name +
               "`, and put the files in place of the old ones there; with [tls] renew_clients commands renew "
               "theirs by themselves, browsers do not"});
  }
}

void HealthEngine::look_at_agent(const HealthView::Agent& agent) {
  if (!agent.connected) {
    const bool promised = agent.lease_left_ns != 0;
    holds({.code = HealthCode::manager_away,
           .severity = promised && agent.lease_left_ns < agent.lease_ns / 2 ? HealthSeverity::critical
                                                                            : HealthSeverity::warning,
           .kind = "manager",
           .name = agent.manager,
           .text = "cannot be reached: " + agent.trouble +
                   (promised ? "; this host's leases end in " + lasted(agent.lease_left_ns)
                             : "; nothing is leased here"),
           .advice = "see whether terraced runs there and this host reaches it; the log says what was tried"});
  }
  if (!agent.guarded) {
    holds({.code = HealthCode::guard_missing,
           .severity = HealthSeverity::critical,
           .kind = "guard",
           .text = "no guard runs on this host: " + agent.guard_trouble,
           .advice = "mend that; until then nobody fences this host's memory when the agent is killed, and its "
                     "programs would go on writing to memory that is leased to others"});
  }
}

}  // namespace terrace::daemon
