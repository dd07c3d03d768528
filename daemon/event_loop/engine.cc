#include "daemon/event_loop/engine.h"

#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>

#include "core/base/failpoint.h"
#include "core/base/units.h"

namespace terrace::daemon {

Engine::Engine(Store& store, Backend& backend, const Clock& clock, kj::Timer& timer)
    : store_(store),
      backend_(backend),
      clock_(clock),
      timer_(timer),
      state_(std::make_unique<StateMachine>()),
      refusal_{.code = ErrorCode::unavailable, .where = "Engine", .detail = "the manager is still starting"},
      tasks_(*this) {}

Engine::~Engine() noexcept = default;

void Engine::taskFailed(kj::Exception&& exception) {
  spdlog::critical("a task of the engine failed: {}", exception.getDescription().cStr());
}

// --- commands ---------------------------------------------------------------------------------------

kj::Promise<Result<Reply>> Engine::submit(Command command) {
  if (refusing_) return Result<Reply>(refusal_);
  auto pair = kj::newPromiseAndFulfiller<Result<Reply>>();
  apply(command, &pair.fulfiller);
  return kj::mv(pair.promise);
}

kj::Promise<Status> Engine::settled() {
  if (refusing_) return Status(refusal_);
  if (!committing_ && open_.empty()) return Status();
  auto pair = kj::newPromiseAndFulfiller<Result<Reply>>();
  hold(Step{}, &pair.fulfiller);
  return pair.promise.then([](Result<Reply> reply) -> Status {
    if (!reply.ok()) return std::move(reply).error();
    return {};
  });
}

void Engine::apply(const Command& command, ReplyFulfiller* fulfiller) {
  ++counters_.commands;
  Step step = state_->apply(command);
  if (step.reply.ok()) {
    if (const auto* pending = std::get_if<GrantPending>(&step.reply.value())) {
      // Answered when the carve was applied; a retry of the same request joins the first one.
      if (fulfiller != nullptr) carving_[pending->lease.value].push_back(kj::mv(*fulfiller));
      for (const Effect& effect : step.effects) carve(std::get<CarveObject>(effect));
      return;
    }
  }
  hold(std::move(step), fulfiller);
  arm_timer();
}

// Puts a step's outcome behind everything that has to be durable before it.
void Engine::hold(Step step, ReplyFulfiller* fulfiller) {
  Batch& batch = committing_ && open_.empty() && step.delta.empty() ? in_flight_ : open_;
  batch.delta.merge(std::move(step.delta));
  std::move(step.effects.begin(), step.effects.end(), std::back_inserter(batch.effects));
  if (fulfiller != nullptr) batch.waiters.push_back({kj::mv(*fulfiller), std::move(step.reply)});
  begin_commit();
}

void Engine::begin_commit() {
  if (committing_ || open_.empty()) return;
  if (open_.delta.empty()) {  // nothing to make durable, and nothing under way before it
    release_batch(std::exchange(open_, Batch{}));
    return;
  }
  in_flight_ = std::exchange(open_, Batch{});
  committing_ = true;
  // The batch's delta stays put while the store reads it: only waiters and effects are added to it.
  tasks_.add(store_worker_.run([this]() -> Status { return store_.commit(in_flight_.delta); })
                 .then([this](Status status) { commit_finished(std::move(status)); }));
}

void Engine::commit_finished(Status status) {
  committing_ = false;
  Batch batch = std::exchange(in_flight_, Batch{});
  if (!status.ok()) {
    begin_recovery(status.error());
    fail_batch(std::move(batch), refusal_);
    return;
  }
  ++counters_.commits;
  recovery_pause_ns_ = recovery_pause_ns_min;
  release_batch(std::move(batch));
  begin_commit();
}

void Engine::release_batch(Batch batch) {
  if (!batch.waiters.empty() && TERRACE_FAILPOINT(reply_before_send) != 0) return;
  const bool replied = !batch.waiters.empty();
  for (Waiter& waiter : batch.waiters) waiter.fulfiller->fulfill(std::move(waiter.reply));
  for (Effect& effect : batch.effects) perform(std::move(effect));
  if (replied && failpoints_enabled()) {  // a moment later the replies have left through the sockets
    tasks_.add(timer_.afterDelay(2 * kj::MILLISECONDS).then([] {
      [[maybe_unused]] const int armed = TERRACE_FAILPOINT(reply_after_send);
    }));
  }
}

void Engine::fail_batch(Batch batch, const Error& error) {
  for (Waiter& waiter : batch.waiters) waiter.fulfiller->fulfill(Result<Reply>(error));
}

// --- effects ----------------------------------------------------------------------------------------

void Engine::carve(const CarveObject& effect) {
  ++backend_jobs_;
  tasks_.add(backend_worker_
                 .run([this, effect]() -> Status {
                   return backend_.carve(effect.object, effect.bytes, effect.extents);
                 })
                 .then([this, effect](Status status) {
                   --backend_jobs_;
                   if (refusing_)
                     return;  // the state this grant belonged to is gone; recovery destroys the object
                   auto waiting = std::move(carving_[effect.lease.value]);
                   carving_.erase(effect.lease.value);
                   ++counters_.commands;
                   Step step = state_->apply(CarveFinished{effect.lease, std::move(status), clock_.now_ns()});
                   for (size_t i = 1; i < waiting.size(); ++i) {
                     Step again;
                     again.reply = step.reply;
                     hold(std::move(again), &waiting[i]);
                   }
                   hold(std::move(step), waiting.empty() ? nullptr : &waiting[0]);
                   arm_timer();
                 }));
}

namespace {

// Failures of this process or machine that pass: the memory behind the lease is not at fault.
bool passing_failure(const Status& status) {
  if (status.ok()) return false;
  const int os_errno = status.error().os_errno;
  return os_errno == EMFILE || os_errno == ENFILE || os_errno == ENOMEM || os_errno == EINTR ||
         os_errno == EAGAIN;
}

}  // namespace

// A fence or scrub that lacks descriptors or memory is tried again until it does not: the lease stays as it is.
template <typename Work, typename Finished>
void Engine::run_backend(Work work, Finished finished, bool urgent) {
  ++backend_jobs_;
  tasks_.add(backend_worker_.run(work, urgent).then([this, work, finished](Status status) mutable {
    --backend_jobs_;
    if (refusing_) return;  // recovery looks at every lease again
    if (!passing_failure(status)) {
      finished(std::move(status));
      return;
    }
    spdlog::warn("trying again in a second: {}", status.error().to_string());
    tasks_.add(timer_.afterDelay(1 * kj::SECONDS).then([this, work, finished] {
      if (!refusing_) run_backend(work, finished, true);
    }));
  }));
}

void Engine::perform(Effect effect) {
  if (auto* fence = std::get_if<FenceObject>(&effect)) {
    // Before anything that waits: others' carves must not give a fenced holder more time.
    run_backend([this, object = fence->object]() -> Status { return backend_.fence(object); },
                [this, lease = fence->lease](Status status) {
                  if (!status.ok())
                    spdlog::error("lease {} could not be fenced: {}", lease.value, status.error().to_string());
                  apply(FenceFinished{lease, std::move(status), clock_.now_ns()}, nullptr);
                },
                true);
  } else if (auto* scrub = std::get_if<ScrubObject>(&effect)) {
    run_backend(
        [this, object = scrub->object]() -> Status {
          const auto scrubbed = backend_.scrub(object);
          if (!scrubbed.ok()) return scrubbed.error();
          return {};
        },
        [this, lease = scrub->lease](Status status) {
          if (!status.ok())
            spdlog::error("lease {} could not be scrubbed: {}", lease.value, status.error().to_string());
          apply(ScrubFinished{lease, std::move(status), clock_.now_ns()}, nullptr);
        },
        false);
  } else if (auto* notify = std::get_if<NotifyHolders>(&effect)) {
    if (TERRACE_FAILPOINT(notify_before_send) != 0 || notifier_ == nullptr) return;
    if (notify->fenced) {
      notifier_->fenced(notify->lease, notify->reason);
    } else {
      notifier_->revoking(notify->lease, notify->grace_ns, notify->reason);
    }
  }
}

// --- time -------------------------------------------------------------------------------------------

void Engine::arm_timer() {
  const auto due = state_->next_due_ns();
  if (!due.has_value() || (armed_for_ns_ != UINT64_MAX && *due >= armed_for_ns_)) return;
  armed_for_ns_ = *due;
  const uint64_t generation = ++timer_generation_;
  const uint64_t now = clock_.now_ns();
  // CLOCK_BOOTTIME goes on during suspend and the loop's timer does not: look again every minute.
  const uint64_t wait_ns = std::min<uint64_t>(*due > now ? *due - now : 0, 60 * ns_per_s);
  tasks_.add(timer_.afterDelay(static_cast<int64_t>(wait_ns) * kj::NANOSECONDS + 1 * kj::MILLISECONDS)
                 .then([this, generation] {
                   if (generation != timer_generation_) return;  // a nearer one was armed since
                   armed_for_ns_ = UINT64_MAX;
                   if (refusing_) return;
                   apply(Tick{clock_.now_ns()}, nullptr);
                 }));
}

// --- start and recovery -----------------------------------------------------------------------------

kj::Promise<Status> Engine::start() {
  return recover().then([this](Status status) -> Status {
    if (status.ok()) {
      refusing_ = false;
      arm_timer();
    }
    return status;
  });
}

kj::Promise<Status> Engine::recover() {
  struct Loaded {
    Image image;
    std::vector<ObservedObject> objects;
  };
  return backend_worker_.run([this]() { return backend_.list(); })
      .then([this](Result<std::vector<ObservedObject>> listed) -> kj::Promise<Result<Loaded>> {
        if (!listed.ok()) return Result<Loaded>(std::move(listed).error());
        auto objects = std::make_shared<std::vector<ObservedObject>>(std::move(listed).value());
        return store_worker_.run([this, objects]() -> Result<Loaded> {
          auto image = store_.load();
          if (!image.ok()) return std::move(image).error();
          return Loaded{std::move(image).value(), std::move(*objects)};
        });
      })
      .then([this](Result<Loaded> loaded) -> kj::Promise<Status> {
        if (!loaded.ok()) return Status(std::move(loaded).error());
        Observation observed;
        for (const ObservedObject& object : loaded->objects)
          observed.objects.emplace_back(object.name, object.bytes);
        for (const SeenDevice& device : backend_.discover()) observed.device_serials.push_back(device.serial);
        if (Status status = check_directory(loaded->image, observed); !status.ok()) return status;
        auto next = std::make_unique<StateMachine>();
        auto recovered = next->recover(std::move(loaded->image), observed, read_boot_id(), clock_.now_ns());
        if (!recovered.ok()) return Status(std::move(recovered).error());
        state_ = std::move(next);
        auto recovery = std::make_shared<Recovery>(std::move(recovered).value());
        findings_ = recovery->findings;
        for (const std::string& finding : findings_) spdlog::warn("recovery: {}", finding);
        return backend_worker_
            .run([this, recovery]() -> Status {
              if (TERRACE_FAILPOINT(recover_before_orphans) != 0) return {};
              for (const std::string& orphan : recovery->orphans) {
                // One that stays is in nobody's way: no lease will have its name, and the next start tries
                // again.
                Status status = backend_.fence(orphan);
                const auto scrubbed = backend_.scrub(orphan);
                if (status.ok() && !scrubbed.ok()) status = scrubbed.error();
                if (!status.ok()) spdlog::error("object {} stays: {}", orphan, status.error().to_string());
              }
              [[maybe_unused]] const int armed = TERRACE_FAILPOINT(recover_after_orphans);
              return {};
            })
            .then([this, recovery](Status status) -> kj::Promise<Status> {
              if (!status.ok() || recovery->delta.empty()) return status;
              return store_worker_.run([this, recovery]() -> Status { return store_.commit(recovery->delta); });
            })
            .then([this, recovery](Status status) -> Status {
              if (!status.ok()) return status;
              ++counters_.recoveries;
              refusing_ = false;
              for (Effect& effect : recovery->effects) perform(std::move(effect));
              [[maybe_unused]] const int armed = TERRACE_FAILPOINT(recover_before_serve);
              return status;
            });
      });
}

// Memory that is gone as a whole, within one boot, is most likely memory that was looked for elsewhere: going
// on would give up every lease while its holder still has it.
Status Engine::check_directory(const Image& image, const Observation& observed) const {
  if (accept_lost_objects_ || image.meta.boot_id.empty() || image.meta.boot_id != read_boot_id()) return {};
  size_t live = 0;
  for (const LeaseRow& lease : image.leases) {
    if (lease.phase != LeasePhase::active && lease.phase != LeasePhase::revoking) continue;
    ++live;
    for (const auto& [name, bytes] : observed.objects)
      if (name == lease.object) return {};
  }
  if (live == 0) return {};
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = "Engine::recover",
      .detail = "none of the " + std::to_string(live) + " live leases has its memory in " +
                backend_.describe_memory() +
                ". Start with the --runtime-dir, --object-dir and --no-mount of the last run; or, if that "
                "memory really is gone, with --accept-lost-objects, which ends these leases"};
}

void Engine::begin_recovery(const Error& cause) {
  if (refusing_) return;
  spdlog::critical("the store could not be written: {}; recovering", cause.to_string());
  refusing_ = true;
  refusal_ = Error{.code = ErrorCode::unavailable,
                   .os_errno = cause.os_errno,
                   .where = "Engine",
                   .detail = "the manager cannot write its store (" + cause.detail +
                             ") and is recovering; leases go on, nothing new is granted. Mend the disk"};
  fail_batch(std::exchange(open_, Batch{}), refusal_);
  for (auto& [lease, waiting] : carving_)
    for (ReplyFulfiller& fulfiller : waiting) fulfiller->fulfill(Result<Reply>(refusal_));
  carving_.clear();
  armed_for_ns_ = UINT64_MAX;
  ++timer_generation_;
  tasks_.add(recover_until_done());
}

// A disk that stays full fails the first commit after each recovery: the pauses between them grow.
kj::Promise<void> Engine::recover_until_done() {
  return timer_.afterDelay(static_cast<int64_t>(recovery_pause_ns_) * kj::NANOSECONDS)
      .then([this]() -> kj::Promise<void> {
        if (backend_jobs_ > 0)
          return recover_until_done();  // what was begun under the lost state must end first
        return recover().then([this](Status status) -> kj::Promise<void> {
          recovery_pause_ns_ = std::min(recovery_pause_ns_ * 2, recovery_pause_ns_max);
          if (status.ok()) {
            spdlog::warn("recovered; serving again");
            refusing_ = false;
            arm_timer();
            return kj::READY_NOW;
          }
          spdlog::critical("recovery failed, trying again: {}", status.error().to_string());
          return recover_until_done();
        });
      });
}

kj::Promise<void> Engine::drain() {
  if (!committing_ && open_.empty() && backend_jobs_ == 0) return kj::READY_NOW;
  return timer_.afterDelay(5 * kj::MILLISECONDS).then([this] { return drain(); });
}

}  // namespace terrace::daemon
