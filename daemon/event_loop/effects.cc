// SPDX-License-Identifier: Apache-2.0
// What the engine does outside: objects carved, resized, handed over, fenced and erased, holders told.

#include <algorithm>
#include <cerrno>

#include "core/base/failpoint.h"
#include "daemon/event_loop/engine.h"
#include "daemon/log/log.h"
#include "daemon/memory/remote/remote_memory.h"

namespace terrace::daemon {

// At once, before anything is durable: what they make is recorded by the step that hears of its end.
bool Engine::is_immediate(const Effect& effect) {
  return std::holds_alternative<CarveObject>(effect) || std::holds_alternative<RefuseGrant>(effect);
}

// In turn, not nested: each carve that fails may let the next of thousands of waiting grants try.
void Engine::perform_immediate(const Effect& effect) {
  immediate_.push_back(effect);
  if (performing_) return;
  performing_ = true;
  while (!immediate_.empty()) {
    const Effect next = std::move(immediate_.front());
    immediate_.pop_front();
    perform_one(next);
  }
  performing_ = false;
}

void Engine::perform_one(const Effect& effect) {
  if (const auto* object = std::get_if<CarveObject>(&effect)) {
    carve(*object);
  } else if (const auto* refused = std::get_if<RefuseGrant>(&effect)) {
    refuse(*refused);
  } else {
    perform(effect);
  }
}

void Engine::perform(Effect effect) {
  if (auto* fence_effect = std::get_if<FenceObject>(&effect)) {
    fence(*fence_effect);
  } else if (auto* scrub = std::get_if<ScrubObject>(&effect)) {
    const uint64_t granule_bytes = state_->pool_granule_bytes(scrub->pool);
    Scrubber& scrubber = scrubber_of(scrub->object);
    scrubber.add(std::move(*scrub), granule_bytes);
  } else if (auto* told = std::get_if<NotifyHolders>(&effect)) {
    notify(*told);
  } else if (auto* resize = std::get_if<ResizeObject>(&effect)) {
    run_backend(
        [this, e = *resize]() -> Status {
          Status status = backend_.resize(e.object, e.from_bytes, e.to_bytes, e.extents);
          // A growth that lacks memory is refused, as a grant is; it is not tried for ever.
          if (!status.ok() && e.to_bytes > e.from_bytes && status.error().os_errno == ENOMEM) {
            Error refused = status.error();
            refused.os_errno = ENOSPC;
            refused.code = ErrorCode::capacity_exhausted;
            return refused;
          }
          return status;
        },
        [this, lease = resize->lease](Status status) {
          finish_change(lease, ResizeFinished{lease, std::move(status), clock_.now_ns()});
        },
        resize->object, std::max(resize->from_bytes, resize->to_bytes), false, share_of(resize->lease));
  } else if (auto* shown = std::get_if<ShowObject>(&effect)) {
    show(*shown);
  } else if (auto* hidden = std::get_if<HideObject>(&effect)) {
    hide(*hidden);
  } else if (auto* rebind = std::get_if<RebindObject>(&effect)) {
    end_holders(rebind->lease, rebind->from, [this, e = *rebind](Status ended) {
      if (ended.ok())
        this->rebind(e);
      else
        finish_change(e.lease, RebindFinished{e.lease, std::move(ended), clock_.now_ns()});
    });
  } else {
    perform_immediate(effect);  // recovery's
  }
}

// A fence or scrub that lacks descriptors or memory is tried again until it does not: the lease stays as it is.
template <typename Work, typename Finished>
void Engine::run_backend(Work work, Finished finished, const std::string& object, uint64_t bytes, bool urgent,
                         ShareKey share) {
  if (backend_.quick(object, bytes)) {
    settle_backend(work, finished, object, bytes, urgent, share, work());
    return;
  }
  ++backend_jobs_;
  Worker& worker = worker_of(object, urgent);
  tasks_.add(worker.run(work, urgent, share)
                 .then([this, work, finished, object, bytes, urgent, share](Status status) mutable {
                   --backend_jobs_;
                   settle_backend(std::move(work), std::move(finished), object, bytes, urgent, share,
                                  std::move(status));
                 }));
}

template <typename Work, typename Finished>
void Engine::settle_backend(Work work, Finished finished, const std::string& object, uint64_t bytes,
                            bool urgent, ShareKey share, Status status) {
  if (refusing_) return;  // recovery looks at every lease again
  if (!passing_failure(status)) {
    finished(std::move(status));
    return;
  }
  // A host that is away has many such; that it is away was said once (daemon/hosts/agents.h).
  log::write(object_host(object).empty() ? log::Level::warn : log::Level::debug, "trying again in a second: {}",
             status.error().to_string());
  tasks_.add(timer_.afterDelay(1 * kj::SECONDS)
                 .then([this, work, finished, object, bytes, urgent, share, recoveries = recoveries_begun_] {
                   if (!refusing_ && recoveries == recoveries_begun_)
                     run_backend(work, finished, object, bytes, urgent, share);
                 }));
}

// --- grants -----------------------------------------------------------------------------------------

void Engine::carve(const CarveObject& effect) {
  auto& waiting = carving_[effect.lease.value];
  const bool wanted =
      std::any_of(waiting.begin(), waiting.end(), [](ReplyFulfiller& one) { return one->isWaiting(); });
  if (!wanted) {  // it was served from the queue and its client is gone
    carved(effect, Error{.code = ErrorCode::cancelled, .where = "Grant", .detail = "its client is gone"});
    return;
  }
  trace_work_begins(actors_[effect.lease.value]);
  if (backend_.quick(effect.object, effect.bytes)) {
    carved(effect, backend_.carve(effect.object, effect.bytes, effect.extents));
    return;
  }
  ++backend_jobs_;
  tasks_.add(
      worker_of(effect.object, false)
          .run([this,
                effect]() -> Status { return backend_.carve(effect.object, effect.bytes, effect.extents); },
               false, share_of(effect.lease))
          .then([this, effect](Status status) {
            --backend_jobs_;
            carved(effect, std::move(status));
          }));
}

void Engine::carved(const CarveObject& effect, Status status) {
  if (refusing_) return;  // the state this grant belonged to is gone; recovery destroys the object
  auto waiting = std::move(carving_[effect.lease.value]);
  carving_.erase(effect.lease.value);
  ++counters_.commands;
  const Command finished = CarveFinished{effect.lease, std::move(status), clock_.now_ns()};
  const Actor actor = std::move(actors_[effect.lease.value]);
  trace_work_ends(actor, "carve");
  std::vector<Event> events;
  Step step = decide(finished, actor, events);
  if (step.reply.ok()) ++counters_.grants;
  for (AuditRow& row : audit_rows(finished, step, *state_, actor, wall_clock_ns()))
    step.delta.audit.push_back(std::move(row));
  actors_.erase(effect.lease.value);
  std::vector<Effect> immediate;  // a failed carve may let the next one in the queue have the room
  std::erase_if(step.effects, [&immediate](Effect& one) {
    if (!is_immediate(one)) return false;
    immediate.push_back(std::move(one));
    return true;
  });
  for (size_t i = 1; i < waiting.size(); ++i) {
    Step again;
    again.reply = step.reply;
    hold(std::move(again), &waiting[i]);
  }
  const bool durable = !step.delta.empty();
  hold(std::move(step), waiting.empty() ? nullptr : &waiting[0], std::move(events));
  trace_change(actor, durable);
  for (const Effect& one : immediate) perform_immediate(one);
  arm_timer();
}

void Engine::refuse(const RefuseGrant& effect) {
  auto waiting = std::move(carving_[effect.lease.value]);
  carving_.erase(effect.lease.value);
  if (const auto at = actors_.find(effect.lease.value); at != actors_.end()) {
    trace_work_begins(at->second);
    if (at->second.trace != nullptr) at->second.trace->failed(error_code_name(effect.error.code));
    actors_.erase(at);
  }
  for (ReplyFulfiller& one : waiting) {
    Step step;
    step.reply = effect.error;
    hold(std::move(step), &one);
  }
}

// --- changes ----------------------------------------------------------------------------------------

void Engine::finish_change(LeaseId lease, Command finished) {
  ReplyFulfiller waiting;
  if (const auto at = changing_.find(lease.value); at != changing_.end()) {
    waiting = kj::mv(at->second);
    changing_.erase(at);
  }
  Actor actor;
  if (const auto at = actors_.find(lease.value); at != actors_.end()) {
    actor = std::move(at->second);
    actors_.erase(at);
    trace_work_ends(actor, std::holds_alternative<ResizeFinished>(finished) ? "resize" : "hand over");
  }
  apply(finished, waiting.get() == nullptr ? nullptr : &waiting, actor);
}

void Engine::rebind(const RebindObject& effect) {
  const auto lines_may_remain = std::make_shared<bool>(false);
  run_backend(
      [this, e = effect, lines_may_remain]() -> Status {
        Status status = backend_.rebind(e.from, e.to, e.bytes, e.extents);
        if (SharedByHosts* shared = backend_.shared_by_hosts(); status.ok() && shared != nullptr)
          *lines_may_remain = shared->take_unwritten(e.from);
        // No room for one piece more: both objects are whole, it goes on when there is.
        if (!status.ok() && status.error().code == ErrorCode::capacity_exhausted) {
          Error later = status.error();
          later.os_errno = EAGAIN;
          return later;
        }
        return status;
      },
      [this, lease = effect.lease, from = effect.from, lines_may_remain](Status status) {
        if (!status.ok())
          log::error("lease {} could not be handed over: {}", lease.value, status.error().to_string());
        else if (ender_ != nullptr)
          ender_->forget(from);
        finish_change(lease, RebindFinished{lease, std::move(status), clock_.now_ns(), *lines_may_remain});
      },
      // Between machines: what waits for an agent waits on its lane, not on this machine's.
      object_host(effect.from).empty() ? effect.to : effect.from, UINT64_MAX, false);
}

// Of a lease on several hosts: each of its objects, all at once; `fenced` when the last one is.
struct Engine::FenceOfMany {
  size_t left = 0;
  Status first = {};  // what failed
};

void Engine::fence(const FenceObject& effect) {
  // Before anything that waits: others' carves must not give a fenced holder more time.
  const LeaseRow* lease = state_->find_lease(effect.lease);
  const std::pair<uint64_t, LeaseId> begun(clock_.now_ns(), effect.lease);
  facts_.fences.insert(begun);
  if (lease != nullptr) ++times_.leases_ended[lease->cause];
  const auto many = std::make_shared<FenceOfMany>(FenceOfMany{.left = 1 + effect.views.size()});
  const std::function<void(Status)> done = [this, effect, begun, many](Status status) {
    if (!status.ok() && many->first.ok()) many->first = std::move(status);
    if (--many->left == 0) fenced(effect, begun, std::move(many->first));
  };
  end_holders(effect.lease, effect.object, [this, effect, done](Status ended) {
    if (ended.ok())
      fence_object(effect, done);
    else
      done(std::move(ended));
  });
  for (const std::string& view : effect.views) {
    end_holders(
        effect.lease, view, [this, lease = effect.lease, view, extents = effect.extents, done](Status ended) {
          if (!ended.ok()) return done(std::move(ended));
          hide(lease, view, extents,
               [done](const Result<Hidden>& hidden) { done(hidden.ok() ? Status() : Status(hidden.error())); });
        });
  }
}

void Engine::fenced(const FenceObject& effect, std::pair<uint64_t, LeaseId> begun, Status status) {
  facts_.fences.erase(begun);
  if (status.ok()) times_.fences.add(clock_.now_ns() - begun.first);
  trace_lease(effect.lease, "fence", begun.first);
  if (!status.ok()) {
    ++facts_.fences_failed;
    facts_.last_fence_failure = "lease " + std::to_string(effect.lease.value) + ": " + status.error().detail;
  }
  fence_took_ns_ = clock_.now_ns() - begun.first;
  apply(FenceFinished{effect.lease, std::move(status), clock_.now_ns()}, nullptr);
  fence_took_ns_ = 0;
}

void Engine::fence_object(const FenceObject& effect, const std::function<void(Status)>& done) {
  const LeaseRow* lease = state_->find_lease(effect.lease);
  run_backend([this, object = effect.object]() -> Status { return backend_.fence(object); }, done,
              effect.object,
              // What is being handed over is fenced behind that work, on the same worker.
              lease == nullptr || !lease->next_object.empty() ? UINT64_MAX : lease->bytes,
              lease == nullptr || lease->next_object.empty());
}

// --- views ------------------------------------------------------------------------------------------

// Not run_backend's: what is tried again must still be wanted, or the object would come about after its lease was fenced.
void Engine::show(const ShowObject& effect) {
  if (!state_->opening(effect.id, effect.view))
    return shown(effect, Error{.code = ErrorCode::lease_revoked,
                               .where = "attach",
                               .detail = "lease " + std::to_string(effect.lease.value) + " ended meanwhile"});
  ++backend_jobs_;
  tasks_.add(worker_of(effect.view, false)
                 .run(
                     [this, effect]() -> Status {
                       SharedByHosts* shared = backend_.shared_by_hosts();
                       if (shared != nullptr)
                         return shared->show(effect.view, effect.object, effect.bytes, effect.extents);
                       return Error{
                           .code = ErrorCode::unsupported, .where = "attach", .detail = "one machine's alone"};
                     },
                     false, share_of(effect.lease))
                 .then([this, effect](Status status) {
                   --backend_jobs_;
                   if (refusing_) return;
                   if (!passing_failure(status)) return shown(effect, std::move(status));
                   log::write(log::Level::debug, "trying again in a second: {}", status.error().to_string());
                   tasks_.add(
                       timer_.afterDelay(1 * kj::SECONDS).then([this, effect, recoveries = recoveries_begun_] {
                         if (!refusing_ && recoveries == recoveries_begun_) show(effect);
                       }));
                 }));
}

void Engine::shown(const ShowObject& effect, Status status) {
  if (!status.ok())
    log::warn("lease {} is not attached on a further host: {}", effect.lease.value, status.error().to_string());
  apply(ViewOpened{effect.id, effect.view, status, clock_.now_ns()}, nullptr);
  std::vector<kj::Own<kj::PromiseFulfiller<Status>>> waiting = std::move(opening_[effect.view]);
  opening_.erase(effect.view);
  for (auto& one : waiting) one->fulfill(kj::cp(status));
}

kj::Promise<Status> Engine::view_opened(const ViewRow& view) {
  if (refusing_) return Status(refusal_);
  if (!state_->opening(view.id, view.object)) return Status();  // whoever asks looks at what came of it
  auto pair = kj::newPromiseAndFulfiller<Status>();
  opening_[view.object].push_back(kj::mv(pair.fulfiller));
  return kj::mv(pair.promise);
}

// Holders are shut out at once; the rest is behind what the worker does: what is being made just then is hidden once it is
// made. Jobs of one share keep their order, so it is that of show(). Not beside each other: to write back takes a device over
// the same range.
void Engine::hide(LeaseId lease, const std::string& view, const std::vector<Extent>& extents,
                  const std::function<void(Result<Hidden>)>& done) {
  const auto outcome = std::make_shared<Hidden>(Hidden::written_back);
  const auto hidden = [this, view, done, outcome](const Status& status) {
    if (status.ok() && ender_ != nullptr) ender_->forget(view);
    done(status.ok() ? Result<Hidden>(*outcome) : Result<Hidden>(status.error()));
  };
  const auto remove = [this, view, extents, outcome]() -> Status {
    SharedByHosts* shared = backend_.shared_by_hosts();
    if (shared == nullptr) return {};
    TERRACE_ASSIGN_OR_RETURN(*outcome, shared->hide(view, extents));
    return {};
  };
  run_backend([this, view]() -> Status { return backend_.fence(view); },
              [this, lease, view, remove, hidden](Status) {
                run_backend(remove, hidden, view, UINT64_MAX, false, share_of(lease));
              },
              view, UINT64_MAX, true);
}

void Engine::hide(const HideObject& effect) {
  const LeaseId lease = lease_of(effect.id);
  end_holders(lease, effect.view, [this, effect](Status ended) {
    if (!ended.ok()) return hide_later(effect, ended);
    hide(lease_of(effect.id), effect.view, effect.extents, [this, effect](const Result<Hidden>& hidden) {
      if (!hidden.ok()) return hide_later(effect, hidden.error());
      apply(ViewClosed{effect.id, effect.view, *hidden == Hidden::lines_may_remain, clock_.now_ns()}, nullptr);
    });
  });
}

void Engine::hide_later(const HideObject& effect, const Status& why) {
  log::error("lease {}: its object {} could not be removed, and is tried again: {}", lease_of(effect.id).value,
             effect.view, why.error().to_string());
  tasks_.add(timer_.afterDelay(5 * kj::SECONDS).then([this, effect, recoveries = recoveries_begun_] {
    if (refusing_ || recoveries != recoveries_begun_) return;
    const auto view = state_->views().find(effect.id);
    if (view != state_->views().end() && view->second.object == effect.view && view->second.closing)
      hide(effect);
  }));
}

void Engine::notify(const NotifyHolders& told) {
  if (TERRACE_FAILPOINT(notify_before_send) != 0 || notifier_ == nullptr) return;
  if (told.fenced) {
    notifier_->fenced(told.lease, told.reason, told.cause);
  } else {
    notifier_->revoking(told.lease, told.grace_ns, told.reason);
  }
}

}  // namespace terrace::daemon
