// SPDX-License-Identifier: Apache-2.0
#include "tests/support/shared_space/group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstring>
#include <thread>

#include "terrace/host_ownership.h"
#include "tests/support/shared_space/holder.h"

namespace terrace::shared_space {
namespace {

using std::chrono::steady_clock;

constexpr auto tick = std::chrono::milliseconds(1);
constexpr uint64_t turn_ns = 1'000'000'000;

// [[of host 0's tensors], [of host 1's]]
std::string listed(const Ledger::PerTensor& counts) {
  std::string text;
  for (const auto& of_host : counts) {
    text += text.empty() ? "[[" : "], [";
    for (uint32_t index = 0; index < tensors; ++index)
      text += (index == 0 ? "" : ", ") + std::to_string(of_host[index].load());
  }
  return text + "]]";
}

Status failed(std::string text) {
  return Error{.code = ErrorCode::unavailable, .where = "shared_space_host", .detail = std::move(text)};
}

}  // namespace

Group::Group(const Setup& setup)
    : setup_(setup),
      deadline_(steady_clock::now() + std::chrono::seconds(setup.limit_s)),
      prng_(setup.seed * hosts + setup.host) {}

Group::~Group() {
  for (uint32_t child = 0; child < holders; ++child) end(child);
  space_.reset();
  if (ledger_ != nullptr) ::munmap(ledger_, sizeof(Ledger));
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

int Group::run() {
  Status status = map();
  if (status.ok()) status = attach();
  if (status.ok()) status = await_attached();
  if (status.ok()) status = work();
  for (uint32_t child = 0; child < holders; ++child) end(child);
  if (status.ok()) status = check_what_is_left();
  if (!status.ok() && said_) (void)publish(State::failed);
  print(status);
  return status.ok() ? 0 : other_failed_ ? 3 : 1;
}

Status Group::map() {
  file_.reset(::open(setup_.file.c_str(), O_RDWR | O_CLOEXEC));
  if (!file_.valid()) return os_error(errno, "shared_space_host", "cannot open " + setup_.file);
  struct stat seen {};
  if (::fstat(file_.get(), &seen) == 0 && S_ISREG(seen.st_mode) &&
      static_cast<uint64_t>(seen.st_size) < space_bytes)
    return failed(setup_.file + " has fewer than " + std::to_string(space_bytes) + " bytes");
  void* const at = ::mmap(nullptr, space_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (at == MAP_FAILED) return os_error(errno, "shared_space_host", "cannot map " + setup_.file);
  memory_ = {static_cast<std::byte*>(at), space_bytes};
  void* const ledger =
      ::mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (ledger == MAP_FAILED) return os_error(errno, "shared_space_host", "cannot map a ledger");
  ledger_ = static_cast<Ledger*>(ledger);  // all zeros
  return {};
}

Result<std::unique_ptr<TensorSpace>> Group::attach_as(std::optional<uint32_t> part) {
  if (!part) return TensorSpace::attach(memory_, {});
  TERRACE_ASSIGN_OR_RETURN(std::vector<HostRange> ranges, equal_host_ranges(hosts * parts_per_host, hosts));
  TERRACE_ASSIGN_OR_RETURN(
      std::shared_ptr<OwnershipSource> ownership,
      ownership_by_host_ranges(file_.get(), {.ranges = std::move(ranges), .host = setup_.host}));
  return TensorSpace::attach(
      memory_, {.ownership = ownership, .part = setup_.host * parts_per_host + *part, .host = setup_.host});
}

// Host 1 stores nothing before it has read host 0's word of this run: the memory may hold the space of an
// earlier one, which host 0 is about to erase.
Status Group::attach() {
  if (setup_.host == 0) {
    TERRACE_RETURN_IF_ERROR(TensorSpace::format(
        memory_, {.parts = hosts * parts_per_host,
                  .records_per_part = 32,
                  .pins_per_part = 8,
                  .coherence = setup_.coherent ? SpaceCoherence::coherent : SpaceCoherence::noncoherent}));
  } else {
    for (bool there = false; !there; std::this_thread::sleep_for(tick)) {
      if (late()) return too_late("for host 0 to make the space");
      const Result<std::unique_ptr<TensorSpace>> space = attach_as(std::nullopt);
      there = space.ok() && others_state(**space) != State::none;
    }
  }
  TERRACE_ASSIGN_OR_RETURN(space_, attach_as(0));
  TERRACE_ASSIGN_OR_RETURN(
      said_, space_->create({.name = group_name(setup_.host), .dtype = DType::u64, .shape = {2}}));
  return publish(State::here);
}

Status Group::await_attached() {
  while (others_state(*space_) == State::none) {
    if (late()) return too_late("for the other host to be there");
    std::this_thread::sleep_for(tick);
  }
  return {};
}

Status Group::publish(State state) {
  const uint64_t words[2] = {setup_.run, static_cast<uint64_t>(state)};
  TERRACE_ASSIGN_OR_RETURN(const uint64_t version,
                           space_->publish(*said_, std::as_bytes(std::span(words)), turn_ns));
  (void)version;
  return {};
}

Group::State Group::others_state(TensorSpace& space) {
  const Result<SharedTensor> tensor = space.open(group_name(1 - setup_.host));
  uint64_t words[2] = {};
  if (!tensor.ok() || tensor->bytes() != sizeof words) return State::none;
  const Result<uint64_t> version = space.read(*tensor, std::as_writable_bytes(std::span(words)));
  if (!version.ok() || words[0] != setup_.run) return State::none;
  return static_cast<State>(words[1]);
}

Status Group::work() {
  for (uint32_t child = 0; child < holders; ++child) start(child);
  const auto next_kill = [this] { return ledger_->steps + prng_.between(1, 2 * setup_.steps_per_kill); };
  uint64_t kill_at = next_kill();
  bool told = false;
  for (State other = State::none; !told || other != State::satisfied; other = others_state(*space_)) {
    if (!children_live()) return failed(ledger_->first_finding());
    if (other == State::failed) {
      other_failed_ = true;
      return failed("the other host found something wrong");
    }
    if (late()) return too_late(told ? "for the other host to have seen enough" : "to have seen enough");
    if (ledger_->steps >= kill_at) {
      kill_one();
      kill_at = next_kill();
    }
    if (!told && satisfied()) {
      TERRACE_RETURN_IF_ERROR(publish(State::satisfied));
      told = true;
    }
    std::this_thread::sleep_for(tick);
  }
  return {};
}

bool Group::satisfied() const {
  const uint32_t other = 1 - setup_.host;
  for (uint32_t index = 0; index < tensors; ++index)
    if (ledger_->reads[other][index] == 0 || ledger_->pins[other][index] == 0) return false;
  return kills_ >= setup_.kills && ledger_->looks() >= setup_.reads && ledger_->news >= setup_.news;
}

Status Group::too_late(const std::string& what) const {
  return failed(std::to_string(setup_.limit_s) + " s were not enough " + what);
}

void Group::start(uint32_t child) {
  const uint64_t seed = prng_.next();
  const pid_t parent = ::getpid();
  children_[child] = ::fork();
  if (children_[child] != 0) {
    if (children_[child] < 0) ledger_->fail(holders, "cannot start a process");
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  be(child, seed);
}

// The parent's space and its part are copies here, which nothing is done with.
void Group::be(uint32_t child, uint64_t seed) {
  const auto space = attach_as(1 + child);
  if (!space.ok()) {
    ledger_->fail(child, "attach: " + space.error().to_string());
    ::_exit(1);
  }
  Holder holder(**space, *ledger_, setup_, child, seed);
  if (child == 0) holder.write_on();
  holder.read_on();
}

// It works until it is killed: any other end is a finding, also one that came just before.
void Group::end(uint32_t child) {
  if (children_[child] <= 0) return;
  ::kill(children_[child], SIGKILL);
  int status = 0;
  const pid_t ended = ::waitpid(children_[child], &status, 0);
  const bool killed = ended == children_[child] && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  children_[child] = 0;
  if (!killed) ended_by_itself(status);
}

void Group::ended_by_itself(int status) {
  ledger_->fail(holders, "a holder ended by itself, " +
                             (WIFSIGNALED(status) ? "with signal " + std::to_string(WTERMSIG(status))
                                                  : "with exit code " + std::to_string(WEXITSTATUS(status))));
}

// The writer every second time, in the middle of whatever it does.
void Group::kill_one() {
  const auto child = prng_.chance(1, 2) ? 0 : static_cast<uint32_t>(1 + prng_.below(readers));
  std::this_thread::sleep_for(std::chrono::microseconds(prng_.below(3000)));
  end(child);
  ++kills_;
  start(child);
}

// Also: nothing was found wrong.
bool Group::children_live() {
  for (pid_t& child : children_) {
    int status = 0;
    if (child <= 0 || ::waitpid(child, &status, WNOHANG) != child) continue;
    child = 0;
    ended_by_itself(status);
  }
  return !ledger_->anything_wrong();
}

// With a part of those who were killed last, so that it is repaired once more.
Status Group::check_what_is_left() {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSpace> space, attach_as(1));
  Holder(*space, *ledger_, setup_, holders, prng_.next()).read_all();
  return ledger_->anything_wrong() ? failed(ledger_->first_finding()) : Status();
}

// What the space says of itself, which is what decides how all of it was read.
const char* Group::memory_kind() const {
  if (!space_) return "none";
  return space_->coherence() == SpaceCoherence::coherent ? "coherent" : "noncoherent";
}

void Group::print(const Status& status) const {
  std::string why = status.ok() ? "" : status.error().to_string();
  for (char& letter : why)
    if (letter == '"' || letter == '\\') letter = '\'';
  const Ledger none{};
  const Ledger& ledger = ledger_ == nullptr ? none : *ledger_;
  std::printf("{\"host\": %" PRIu32 ", \"memory\": \"%s\", \"kills\": %" PRIu64 ", \"publications\": %" PRIu64
              ", \"given_up\": %" PRIu64 ", \"reads\": %s, \"pins\": %s, \"checks\": %" PRIu64
              ", \"without_content\": %" PRIu64 ", \"news\": %" PRIu64 ", \"wrong\": %" PRIu64
              ", \"why\": \"%s\"}\n",
              setup_.host, memory_kind(), kills_, ledger.publications.load(), ledger.given_up.load(),
              listed(ledger.reads).c_str(), listed(ledger.pins).c_str(), ledger.checks.load(),
              ledger.without_content.load(), ledger.news.load(), ledger.wrong.load(), why.c_str());
  std::fflush(stdout);
}

}  // namespace terrace::shared_space
