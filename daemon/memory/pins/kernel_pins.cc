// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/pins/kernel_pins.h"

#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "core/os/fault_guard.h"
#include "daemon/memory/pins/count_program.h"

namespace terrace::daemon {
namespace {

constexpr const char* kernel_pins = "KernelPins";
constexpr uint64_t page_bytes = 4096, page_struct_bytes = 64, count_offset = 52;
constexpr uint32_t segments_max = 65536;  // ranges of one device
// Called for each range once no reference from the unbinding itself is left, right before the range's page structures
// go. The program runs at the first call only: then all are there.
constexpr char unmapping[] = "arch_remove_memory";

int bpf(int command, bpf_attr& attributes) {
  return static_cast<int>(::syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

Error lacking(const std::string& what) {
  return Error{.code = ErrorCode::unsupported,
               .where = kernel_pins,
               .detail = "pinned pages of dax memory cannot be seen: " + what};
}

Error lacking(int code, const std::string& what) {
  Error error = os_error(code, kernel_pins, "pinned pages of dax memory cannot be seen: " + what);
  error.code = ErrorCode::unsupported;
  return error;
}

// 0: not told.
uint64_t symbol(const std::string& wanted) {
  std::ifstream symbols("/proc/kallsyms");
  std::string line;
  while (std::getline(symbols, line)) {
    if (!line.ends_with(wanted) || line.size() <= wanted.size()) continue;
    char type = 0, name[64] = {};
    uint64_t address = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 " %c %63s", &address, &type, name) == 3 && wanted == name)
      return address;
  }
  return 0;
}

UniqueFd make_map(uint32_t value_bytes, uint32_t entries, uint32_t flags) {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = sizeof(uint32_t);
  attributes.value_size = value_bytes;
  attributes.max_entries = entries;
  attributes.map_flags = flags;
  return UniqueFd(bpf(BPF_MAP_CREATE, attributes));
}

Status set_segment(int map, uint32_t index, CountSegment segment) {
  bpf_attr attributes{};
  attributes.map_fd = static_cast<uint32_t>(map);
  attributes.key = address_of(&index);
  attributes.value = address_of(&segment);
  if (bpf(BPF_MAP_UPDATE_ELEM, attributes) != 0)
    return os_error(errno, kernel_pins, "cannot name pages to the kernel");
  return {};
}

// As the program sees it, where this process is in no process number namespace of its own.
uint64_t this_thread() {
  return static_cast<uint64_t>(::syscall(SYS_gettid));
}

// 0: not told.
uint64_t page_number(const std::byte* page) {
  const UniqueFd pages(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  uint64_t entry = 0;
  const auto at = static_cast<off_t>(address_of(page) / page_bytes * sizeof entry);
  if (!pages.valid() || ::pread(pages.get(), &entry, sizeof entry, at) != sizeof entry) return 0;
  return entry & ((uint64_t{1} << 55) - 1);
}

uint64_t blocks_of(const std::vector<PageRange>& ranges, uint64_t block_bytes) {
  uint64_t blocks = 0;
  for (const PageRange& range : ranges) blocks += range.bytes / block_bytes;
  return blocks;
}

}  // namespace

struct KernelPins::Shared {
  CountWork* work = nullptr;
  ~Shared() {
    if (work != nullptr) ::munmap(work, page_bytes);
  }
};

KernelPins::KernelPins() = default;

KernelPins::~KernelPins() = default;

Status KernelPins::load(int program_type, UniqueFd& program) {
  const CountProgram code = count_program(work_.get(), segments_.get());
  const bpf_func_info functions[] = {{0, 3}, {code.step, 4}};
  bpf_attr attributes{};
  attributes.prog_type = static_cast<uint32_t>(program_type);
  attributes.insns = address_of(code.code.data());
  attributes.insn_cnt = static_cast<uint32_t>(code.code.size());
  attributes.license = address_of("GPL");  // the program's, as the kernel's readers of its memory want it
  attributes.prog_btf_fd = static_cast<uint32_t>(types_.get());
  attributes.func_info = address_of(functions);
  attributes.func_info_cnt = 2;
  attributes.func_info_rec_size = sizeof(bpf_func_info);
  program = UniqueFd(bpf(BPF_PROG_LOAD, attributes));
  return program.valid() ? Status{}
                         : lacking(errno, "the kernel does not take a BPF program (bpf_loop: Linux 5.17)");
}

// Everything but the proof.
Status KernelPins::open() {
#if !defined(__x86_64__)
  return lacking("only x86-64 is known");
#endif
  const uint64_t base = symbol("vmemmap_base");
  if (base == 0)
    return lacking("/proc/kallsyms does not tell vmemmap_base (CONFIG_KALLSYMS_ALL, kptr_restrict)");
  work_ = make_map(sizeof(CountWork), 1, BPF_F_MMAPABLE);
  segments_ = make_map(sizeof(CountSegment), segments_max, 0);
  if (!work_.valid() || !segments_.valid()) return lacking(errno, "the kernel gives no BPF map");
  void* mapped = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, work_.get(), 0);
  if (mapped == MAP_FAILED) return lacking(errno, "a BPF map cannot be mapped");
  shared_ = std::make_unique<Shared>();
  shared_->work = static_cast<CountWork*>(mapped);

  const std::vector<char> types = count_program_types();
  bpf_attr attributes{};
  attributes.btf = address_of(types.data());
  attributes.btf_size = static_cast<uint32_t>(types.size());
  types_ = UniqueFd(bpf(BPF_BTF_LOAD, attributes));
  if (!types_.valid()) return lacking(errno, "the kernel does not take a program's types (BTF)");
  TERRACE_RETURN_IF_ERROR(load(BPF_PROG_TYPE_RAW_TRACEPOINT, look_));
  TERRACE_RETURN_IF_ERROR(load(BPF_PROG_TYPE_KPROBE, probe_));
  TERRACE_RETURN_IF_ERROR(watch_unmapping());
  TERRACE_ASSIGN_OR_RETURN(page_structs_, peek(base));
  return {};
}

Status KernelPins::watch_unmapping() {
  std::ifstream type("/sys/bus/event_source/devices/kprobe/type");
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  if (!(type >> attributes.type)) return lacking("the kernel has no kprobes (CONFIG_KPROBES)");
  attributes.kprobe_func = address_of(unmapping);
  event_ =
      UniqueFd(static_cast<int>(::syscall(SYS_perf_event_open, &attributes, -1, 0, -1, PERF_FLAG_FD_CLOEXEC)));
  if (!event_.valid()) return lacking(errno, std::string("no probe at ") + unmapping);
  if (::ioctl(event_.get(), PERF_EVENT_IOC_SET_BPF, probe_.get()) != 0 ||
      ::ioctl(event_.get(), PERF_EVENT_IOC_ENABLE, 0) != 0)
    return lacking(errno, std::string("no program at ") + unmapping);
  return {};
}

Status KernelPins::arm(const std::vector<PageRange>& ranges, PageBlock block) {
  if (ranges.size() >= segments_max) return lacking("the memory lies in too many ranges");
  uint32_t index = 0;
  for (const PageRange& range : ranges) {
    const uint64_t counter = page_structs_ + range.start / page_bytes * page_struct_bytes + count_offset;
    TERRACE_RETURN_IF_ERROR(set_segment(segments_.get(), index++, {counter, range.bytes / block.bytes}));
  }
  TERRACE_RETURN_IF_ERROR(set_segment(segments_.get(), index, {}));
  *shared_->work = {
      .thread = this_thread(), .stride = block.bytes / page_bytes * page_struct_bytes, .idle = block.idle};
  return {};
}

Status KernelPins::run() {
  bpf_attr attributes{};
  attributes.test.prog_fd = static_cast<uint32_t>(look_.get());
  if (bpf(BPF_PROG_TEST_RUN, attributes) != 0)
    return os_error(errno, kernel_pins, "the kernel did not count pages");
  return {};
}

// A word of the kernel's memory, in halves: as the sum of one counter each.
Result<uint64_t> KernelPins::peek(uint64_t address) {
  uint64_t halves[2] = {};
  for (size_t i = 0; i < 2; ++i) {
    TERRACE_RETURN_IF_ERROR(set_segment(segments_.get(), 0, {address + i * sizeof(uint32_t), 1}));
    TERRACE_RETURN_IF_ERROR(set_segment(segments_.get(), 1, {}));
    *shared_->work = {.thread = this_thread()};
    TERRACE_RETURN_IF_ERROR(run());
    if (shared_->work->read != 1 || shared_->work->failed != 0)
      return lacking("the kernel's memory cannot be read (lockdown, or a process number namespace)");
    halves[i] = shared_->work->difference & 0xffffffffu;  // it is extended as a negative one
  }
  return halves[0] | (halves[1] << 32);
}

Result<PinCount> KernelPins::counted(const std::vector<PageRange>& ranges, PageBlock block) const {
  const CountWork& work = *shared_->work;
  const uint64_t blocks = blocks_of(ranges, block.bytes);
  if (work.runs != 1 || work.finished != 1 || work.failed != 0 || work.read != blocks) {
    return Error{.code = ErrorCode::io_error,
                 .where = kernel_pins,
                 .detail = "pinned pages were not counted: " + std::to_string(work.read) + " of " +
                           std::to_string(blocks) + " blocks looked at in " + std::to_string(work.runs) +
                           " runs, " + std::to_string(work.failed) + " unreadable"};
  }
  return PinCount{work.blocks, static_cast<int64_t>(work.difference)};
}

Result<PinCount> KernelPins::count(const std::vector<PageRange>& ranges, PageBlock block) {
  TERRACE_RETURN_IF_ERROR(arm(ranges, block));
  TERRACE_RETURN_IF_ERROR(run());
  return counted(ranges, block);
}

// --- proofs ---------------------------------------------------------------------------------------------

// Whether a pin of this process in `page`, and nothing else, shows in the count of the range.
Result<bool> KernelPins::shows(std::byte* page, PageRange range, PageBlock block) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return os_error(errno, kernel_pins, "cannot make a pipe");
  const UniqueFd out(ends[0]), in(ends[1]);
  const auto before = count({range}, block);
  const iovec piece{page, page_bytes};
  if (::vmsplice(in.get(), &piece, 1, 0) != static_cast<ssize_t>(page_bytes))
    return lacking(errno, "a page cannot be pinned to see whether it shows");
  const auto pinned = count({range}, block);
  std::vector<char> bytes(page_bytes);
  const bool emptied = ::read(out.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  const auto after = count({range}, block);
  for (const auto* one : {&before, &pinned, &after})
    if (!one->ok()) return one->error();
  return emptied && pinned->pins == before->pins + 1 && after->pins == before->pins;
}

// By a page of this process. The kernel itself may let go of a fresh page in between: so several tries.
Status KernelPins::prove() {
  void* mapped =
      ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) return lacking(errno, "no page to prove it with");
  auto* page = static_cast<std::byte*>(mapped);
  *page = std::byte{1};
  Status proved = lacking("a page that was pinned did not show as one");
  for (int tries = 0; tries < 20 && !proved.ok(); ++tries) {
    const uint64_t number = page_number(page);
    if (number == 0) break;
    const auto seen = shows(page, {number * page_bytes, page_bytes}, {page_bytes, 0});
    if (!seen.ok()) proved = seen.error();
    if (seen.ok() && *seen) proved = {};
  }
  ::munmap(mapped, page_bytes);
  return proved;
}

Status KernelPins::prepare() {
  if (!usable_.has_value()) {
    usable_ = open();
    if (usable_->ok()) usable_ = prove();
    if (!usable_->ok()) event_ = UniqueFd();
  }
  return *usable_;
}

Status KernelPins::usable() {
  const MutexLock lock(mutex_);
  return prepare();
}

// The page is the last of its block: that the whole block's count rises is part of the proof.
Result<PageBlock> KernelPins::learn(std::span<std::byte> memory, PageRange range, uint64_t bytes) {
  const MutexLock lock(mutex_);
  TERRACE_RETURN_IF_ERROR(prepare());
  const uint64_t blocks = range.bytes / bytes;
  if (blocks == 0) return lacking("less memory than one block");
  TERRACE_ASSIGN_OR_RETURN(const PinCount all, count({range}, {bytes, 0}));
  const uint64_t idle = static_cast<uint64_t>(all.pins) / blocks;
  if (idle > 1 || static_cast<uint64_t>(all.pins) != idle * blocks || all.blocks != idle * blocks)
    return lacking("counts of pages that nobody has are not what a known kernel has");
  const uint64_t middle = blocks / 2 * bytes;
  std::byte* last = memory.data() + middle + bytes - page_bytes;
  // A page that was never touched has no entry that could be pinned.
  if (!os::guarded([last] { (void)*static_cast<volatile std::byte*>(last); }))
    return lacking("the memory failed under a read (SIGBUS)");
  TERRACE_ASSIGN_OR_RETURN(const PinCount mapped, count({range}, {bytes, idle}));
  if (!mapped.none()) return lacking("a mapping counts as a pin on this kernel (Linux 6.15 and later)");
  TERRACE_ASSIGN_OR_RETURN(const bool seen, shows(last, {range.start + middle, bytes}, {bytes, idle}));
  if (!seen) return lacking("a page of the device that was pinned did not show as one");
  return PageBlock{bytes, idle};
}

// --- use ------------------------------------------------------------------------------------------------

Result<PinCount> KernelPins::look(const std::vector<PageRange>& ranges, PageBlock block) {
  const MutexLock lock(mutex_);
  TERRACE_RETURN_IF_ERROR(prepare());
  return count(ranges, block);
}

Result<PinCount> KernelPins::during(const std::vector<PageRange>& ranges, PageBlock block,
                                    const std::function<Status()>& take_away) {
  const MutexLock lock(mutex_);
  const Status prepared = prepare();
  const Status armed = prepared.ok() ? arm(ranges, block) : prepared;
  const Status taken = take_away();
  auto result = armed.ok() ? counted(ranges, block) : Result<PinCount>(armed.error());
  // A probe that does not fire would keep every fence's memory for ever.
  if (armed.ok() && taken.ok() && shared_->work->runs == 0)
    usable_ = lacking("the kernel did not reach the probe when a device was taken away");
  if (shared_ != nullptr) *shared_->work = {};
  if (!taken.ok()) return taken.error();
  return result;
}

}  // namespace terrace::daemon
