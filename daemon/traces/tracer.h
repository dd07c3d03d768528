// SPDX-License-Identifier: Apache-2.0
// Which calls are traced, and how long what they did took: spans, handed to who sends them (daemon/traces/otlp).
//
//   a call is admitted -> Tracer::begin -> CallTrace, held by the call and by what the engine does for it
//                                            -> its last holder lets go: the span of the call
//                      -> the engine: queue, carve, commit, fence, scrub: child spans
//
// A call that changes nothing has no span. Without a client's trace and without an exporter a call has no CallTrace at all.
//
// Threads   The event loop's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/prng.h"
#include "daemon/traces/trace_context.h"

namespace terrace::daemon {

struct Span {
  uint64_t trace_high = 0, trace_low = 0;
  uint64_t id = 0;
  uint64_t parent = 0;    // 0: the first of its trace
  std::string_view name;  // lives as long as the program
  bool is_call = false;   // or a part of one
  uint64_t begin_wall_ns = 0, end_wall_ns = 0;
  // 0, or empty: of none.
  uint64_t lease = 0;
  std::string tenant = {}, pool = {};
  std::string code = {};  // of its error
};

class CallTrace;

class Tracer : public std::enable_shared_from_this<Tracer> {
 public:
  using Export = std::function<void(Span&&)>;

  // `clock` outlives it. `seed`: of ids.
  explicit Tracer(const Clock& clock, uint64_t seed = secure_random_u64());

  // Where spans go; empty: nowhere. `sample`: of the traces that begin here, from 0 to 1; a client's trace is followed as
  // its own flag says.
  void set_export(Export out, double sample);
  bool exporting() const { return static_cast<bool>(export_); }

  // `method` lives as long as the program. Null: nothing of the call is to be told.
  std::shared_ptr<CallTrace> begin(std::string_view method, const std::optional<TraceContext>& client);
  // What was done for the call `parent`, which may have ended; `begin_ns`, `end_ns`: of `clock`.
  void child(const TraceContext& parent, std::string_view name, uint64_t begin_ns, uint64_t end_ns,
             uint64_t lease = 0);

  uint64_t spans() const { return spans_; }  // that were handed on
  // Of them, those that were not sent after all, as who sends them says.
  void count_dropped_by(std::function<uint64_t()> dropped) { dropped_ = std::move(dropped); }
  uint64_t dropped() const { return dropped_ ? dropped_() : 0; }

 private:
  friend class CallTrace;
  uint64_t draw();  // never 0
  uint64_t wall_ns(uint64_t at_ns) const;
  void end(Span&& span);

  const Clock& clock_;
  Prng random_;
  Export export_;
  uint64_t sample_below_ = 0;  // of 2^32
  uint64_t spans_ = 0;
  std::function<uint64_t()> dropped_;
};

// One call. The engine notes what it is about.
class CallTrace {
 public:
  CallTrace(std::shared_ptr<Tracer> tracer, std::string_view method, const TraceContext& own, uint64_t parent);
  ~CallTrace();
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;

  // As the parent of what is done for it.
  const TraceContext& context() const { return own_; }
  const std::string& trace_id() const { return trace_id_; }

  // It changed something, or asked for that: it has a span.
  void changed() { changed_ = true; }
  void about(uint64_t lease, std::string_view tenant, std::string_view pool);
  void failed(std::string_view code) { code_ = code; }
  void child(std::string_view name, uint64_t begin_ns, uint64_t end_ns, uint64_t lease = 0) {
    tracer_->child(own_, name, begin_ns, end_ns, lease);
  }

  // When what is under way for it began; 0: nothing is. The engine's own notes.
  uint64_t waits_since_ns = 0, works_since_ns = 0;

 private:
  const std::shared_ptr<Tracer> tracer_;
  const std::string_view method_;
  const TraceContext own_;
  const uint64_t parent_;
  const std::string trace_id_;
  const uint64_t began_ns_;
  bool changed_ = false;
  uint64_t lease_ = 0;
  std::string tenant_, pool_, code_;
};

}  // namespace terrace::daemon
