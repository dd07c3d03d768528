// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/metrics/engine_metrics.h"

#include "core/schema/terrace.capnp.h"
#include "core/schema/words.h"

namespace terrace::daemon {
namespace {

using Kind = MetricsText::Kind;

void add_counters(MetricsText& out, const Engine& engine) {
  const EngineCounters& counters = engine.counters();
  out.counter("terrace_commands_total", "Changes that were applied: grants, releases, adoptions and so on.",
              counters.commands);
  out.counter("terrace_store_commits_total", "Durable commits of the store.", counters.commits);
  const JournalRoom journal = engine.journal_room();
  out.gauge("terrace_store_journal_bytes", "Room for commits that the database does not have yet.",
            journal.bytes);
  out.gauge("terrace_store_journal_used_bytes",
            "Of the journal, in use; it goes on filling while the disk is full.", journal.used_bytes);
  out.counter("terrace_recoveries_total", "Times that the manager read its store again after a failed commit.",
              counters.recoveries);
  out.counter("terrace_moves_total", "Leases that the manager itself moved to another place.", counters.moves);
  const ScrubCounters scrub = engine.scrub_counters();
  out.counter("terrace_scrubbed_bytes_total", "Bytes erased before they were free again.",
              scrub.scrubbed_bytes);
  out.gauge("terrace_scrub_queued_bytes", "Bytes that wait to be erased.", scrub.queued_bytes);
}

void add_times(MetricsText& out, const EngineTimes& times) {
  out.family("terrace_grant_seconds", Kind::histogram,
             "From a grant's request to its answer; waited: for room.");
  out.sample(times.grants, {{"waited", "no"}});
  out.sample(times.waits, {{"waited", "yes"}});
  out.family("terrace_grant_refusals_total", Kind::counter, "Grants that were refused, by the error's code.");
  for (const auto& [code, count] : times.grants_refused) out.sample(count, {{"reason", error_code_name(code)}});
  out.family("terrace_fence_seconds", Kind::histogram,
             "From when a fence may begin until nobody reaches the memory.");
  out.sample(times.fences);
  out.family("terrace_scrub_seconds", Kind::histogram,
             "From a fence's end until the memory is erased, what waited before it included.");
  out.sample(times.scrubs);
  out.family("terrace_leases_ended_total", Kind::counter, "Leases that were fenced, by why.");
  for (const auto& [cause, count] : times.leases_ended)
    out.sample(count, {{"cause", schema::enum_word(static_cast<rpc::LeaseCause>(cause))}});
  out.counter("terrace_renewals_total", "Leases that were renewed, once for each time.", times.renewals);
  out.family("terrace_store_commit_seconds", Kind::histogram, "How long commits of the store took.");
  out.sample(times.commits);
}

}  // namespace

void add_engine(MetricsText& out, const Engine& engine) {
  add_counters(out, engine);
  add_times(out, engine.times());
}

}  // namespace terrace::daemon
