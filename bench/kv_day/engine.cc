// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_day/engine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "bench/kv_day/block.h"

namespace terrace::bench::day {
namespace {

constexpr uint64_t in_place_every = 4, timed_every = 8;
constexpr uint64_t recent_requests = 1000;  // from which blocks are read once more
constexpr size_t batch = 32;
constexpr uint64_t singly_every = 4;  // prompts that are read once more
constexpr uint64_t put_wait_ns = 5 * ns_per_ms;

// Owners of the parts are told apart by locks on the lease's file, by each host for itself. Whoever may not open the
// descriptor anew asks for a path.
Result<std::shared_ptr<OwnershipSource>> ownership_of(Lease& lease, const HostOwnershipOptions& options) {
  Result<std::shared_ptr<OwnershipSource>> by_fd = ownership_by_host_ranges(lease.fd(), options);
  if (by_fd.ok() || by_fd.error().code != ErrorCode::permission_denied) return by_fd;
  TERRACE_ASSIGN_OR_RETURN(const std::string path, lease.open_path());
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) return os_error(errno, "bench_day", "cannot open " + path);
  return ownership_by_host_ranges(file.get(), options);
}

}  // namespace

std::vector<HostRange> ranges_of(const Settings& settings) {
  std::vector<HostRange> ranges;
  const uint32_t seats_from = settings.hosts * settings.parts_per_host;
  for (uint32_t host = 0; host < settings.hosts; ++host) {
    ranges.push_back({host, host * settings.parts_per_host, settings.parts_per_host});
    ranges.push_back({host, seats_from + host * settings.seats_per_host, settings.seats_per_host});
  }
  return ranges;
}

Engine::Engine(const Shared& shared, uint32_t number, uint32_t process)
    : shared_(shared),
      control_(shared.control()),
      counts_(control_.engines[number]),
      process_(process),
      is_successor_(control_.successor == process + 1),
      prng_(monotonic_ns() + number),
      bytes_(shared.settings().block_bytes) {}

Result<std::unique_ptr<Engine>> Engine::start(const Shared& shared, uint32_t number, uint32_t process) {
  const Settings& settings = shared.settings();
  std::unique_ptr<Engine> engine(new Engine(shared, number, process));
  SessionOptions session;
  session.socket_path = settings.socket;
  session.connect_timeout_ns = 60 * ns_per_s;
  TERRACE_ASSIGN_OR_RETURN(engine->session_, Session::connect(session));
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Lease> lease,
                           engine->session_->attach(LeaseId{}, lease_label, LeaseAccess::read_write));
  TERRACE_ASSIGN_OR_RETURN(engine->mapping_, Mapping::map(lease));
  KvAttachOptions options;
  options.host = number % settings.hosts;
  TERRACE_ASSIGN_OR_RETURN(options.ownership, ownership_of(*lease, {.ranges = ranges_of(settings),
                                                                    .host = number % settings.hosts}));
  TERRACE_ASSIGN_OR_RETURN(engine->space_, KvSpace::attach(engine->mapping_->bytes(), options));
  return engine;
}

std::optional<uint64_t> Engine::take_request() {
  if (const uint64_t cut_short = counts_.current; cut_short != 0) return cut_short - 1;  // its predecessor's
  if (control_.stop != 0) return std::nullopt;
  const uint64_t request = control_.next_request.fetch_add(1);
  if (request >= control_.end_request) return std::nullopt;
  counts_.current = request + 1;
  return request;
}

void Engine::work() {
  for (std::optional<uint64_t> request = take_request(); request; request = take_request()) {
    while (*request >= control_.gate && control_.stop == 0) ::usleep(200);
    serve(*request);
    for (uint64_t again = 0; again < shared_.settings().rereads && control_.stop == 0; ++again)
      read_again(*request);
    const uint64_t evicted = space_->counters().evicted;
    add(counts_.evicted, evicted - evicted_before_);
    evicted_before_ = evicted;
    add(counts_.requests);
    ++control_.done_requests;  // before: one that is killed in between counts twice, not never
    counts_.current = 0;
  }
  let_go();
}

void Engine::serve(uint64_t request) {
  const std::span<const uint32_t> blocks = shared_.blocks_of(request);
  const uint64_t hits = read_prefix(blocks);
  put_rest(blocks, hits);
  const uint32_t hour = shared_.hour_of(request);
  add(counts_.uses[hour], blocks.size());
  add(counts_.hits[hour], hits);
  if (!is_successor_) return;
  add(counts_.uses_of_successor, blocks.size());
  add(counts_.hits_of_successor, hits);
}

// As another engine would that has got a prompt like a recent one, and computes nothing: blocks in batches, and now and
// then one by one.
void Engine::read_again(uint64_t request) {
  const std::span<const uint32_t> blocks =
      shared_.blocks_of(request - std::min(request, prng_.below(recent_requests)));
  if (prng_.chance(1, singly_every)) {
    read_prefix(blocks);
    return;
  }
  for (size_t from = 0; from < blocks.size(); from += batch)
    if (!read_batch(blocks.subspan(from, std::min(batch, blocks.size() - from)))) return;
}

// Whether all of them were there.
bool Engine::read_batch(std::span<const uint32_t> blocks) {
  keys_.clear();
  for (const uint32_t block : blocks) keys_.push_back(key_of(block));
  const uint64_t each = shared_.settings().block_bytes;
  batch_bytes_.resize(batch * each);
  std::vector<KvGet> gets;
  for (size_t at = 0; at < blocks.size(); ++at)
    gets.push_back({.key = keys_[at], .into = std::span(batch_bytes_).subspan(at * each, each)});
  const std::vector<Result<uint64_t>> got = space_->get_many({}, gets);
  uint64_t copied = 0, bytes = 0;
  for (size_t at = 0; at < blocks.size(); ++at) {
    if (!got[at].ok()) {
      failed(blocks[at], got[at].error(), "get_many");
      continue;
    }
    shared_.judge(blocks[at], gets[at].into.first(*got[at]), "copied in a batch");
    ++copied;
    bytes += *got[at];
  }
  add(counts_.copied, copied);
  add(counts_.read_bytes, bytes);
  return copied == blocks.size();
}

uint64_t Engine::read_prefix(std::span<const uint32_t> blocks) {
  if (blocks.empty()) return 0;
  keys_.clear();
  for (const uint32_t block : blocks) keys_.push_back(key_of(block));
  key_views_.assign(keys_.begin(), keys_.end());
  const Result<uint64_t> there = space_->prefix({}, key_views_);
  if (!there.ok()) {
    failed(blocks.front(), there.error(), "prefix");
    return 0;
  }
  for (uint64_t at = 0; at < *there; ++at)
    if (!read(blocks[at], keys_[at])) return at;  // evicted since
  return *there;
}

bool Engine::read(uint32_t block, const std::string& key) {
  ++reads_;
  const bool timed = reads_ % timed_every == 0;
  const uint64_t begin = timed ? monotonic_ns() : 0;
  if (reads_ % in_place_every == 1) return read_in_place(block, key);
  const Result<uint64_t> got = space_->get({}, {.key = key, .into = bytes_});
  if (!got.ok()) return failed(block, got.error(), "get");
  if (timed) counts_.read.add(monotonic_ns() - begin);
  shared_.judge(block, std::span(bytes_).first(*got), "copied");
  add(counts_.copied);
  add(counts_.read_bytes, *got);
  return true;
}

// The view stays until the next one: meanwhile its block must not change, whatever is put and evicted.
bool Engine::read_in_place(uint32_t block, const std::string& key) {
  let_go();
  Result<KvView> view = space_->view({}, key);
  if (!view.ok()) return failed(block, view.error(), "view");
  shared_.judge(block, view->bytes(), "in place");
  add(counts_.in_place);
  add(counts_.read_bytes, view->bytes().size());
  held_ = std::move(*view);
  held_block_ = block;
  return true;
}

void Engine::let_go() {
  if (held_.bytes().empty()) return;
  shared_.judge(held_block_, held_.bytes(), "in place, later");
  held_.reset();
}

void Engine::put_rest(std::span<const uint32_t> blocks, uint64_t from) {
  for (uint64_t at = from; at < blocks.size(); ++at) {
    const uint32_t number = puts_++;
    control_.puts_begun[process_].store(puts_);
    const Plant plant = prng_.chance(1, 500) ? shared_.settings().plant : Plant::none;
    make_block(blocks[at] + (plant == Plant::other ? 1 : 0), {process_, number}, bytes_);
    if (plant == Plant::torn) bytes_[bytes_.size() / 2] ^= std::byte{1};
    KvPutOptions options{.wait_ns = put_wait_ns};
    if (at > 0) options.parent = keys_[at - 1];
    const Status put = space_->put({}, {.key = keys_[at], .bytes = bytes_, .options = options});
    if (put.ok()) {
      add(counts_.put);
      add(counts_.put_bytes, bytes_.size());
    } else if (put.error().code == ErrorCode::already_exists) {
      add(counts_.there_already);
    } else {
      failed(blocks[at], put.error(), "put");
    }
  }
}

// What a cache may answer is no fault. Always false: there is nothing to look at.
bool Engine::failed(uint32_t block, const Error& error, const char* how) {
  using enum ErrorCode;
  if (error.code == capacity_exhausted || error.code == busy)
    add(counts_.refused);
  else if (error.code != not_found)
    shared_.found_wrong(block, how, error.to_string());
  return false;
}

int run_engine(int shared_fd, uint32_t number, uint32_t process) {
  const uint64_t begin = monotonic_ns();
  const Shared shared(shared_fd);
  Control& control = shared.control();
  if (number >= shared.settings().engines || process >= processes_max) return 2;
  const Result<std::unique_ptr<Engine>> engine = Engine::start(shared, number, process);
  if (!engine.ok()) {
    std::fprintf(stderr, "bench_day: engine %u: %s\n", number, engine.error().to_string().c_str());
    return 1;
  }
  ++control.ready;
  while (control.go == 0) ::usleep(500);
  std::atomic<uint64_t>& longest = control.engines[number].start_ns;
  longest = std::max<uint64_t>(longest, monotonic_ns() - begin);
  (*engine)->work();
  return 0;
}

}  // namespace terrace::bench::day
