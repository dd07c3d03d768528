// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/node_moves.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace terrace::tiering {
namespace {

// Of <linux/mempolicy.h>.
constexpr int policy_preferred = 1;
constexpr int move_own = 1 << 1;

constexpr int nodes_max = 1024;
constexpr uint64_t page_bytes = 4096;
constexpr uint64_t huge_bytes = 2u << 20;
constexpr uint32_t pages_max = huge_bytes / page_bytes;
constexpr int turns_max = 3;  // a page may be busy for a moment, or lose its translation to reclaim

long move_pages_of_kernel(unsigned long count, void** pages, const int* nodes, int* status) {
  return ::syscall(SYS_move_pages, 0, count, pages, nodes, status, nodes == nullptr ? 0 : move_own);
}

long prefer_of_kernel(void* at, unsigned long bytes, int node) {
  constexpr int word_bits = 8 * sizeof(unsigned long);
  unsigned long mask[nodes_max / word_bits] = {};
  if (node < 0 || node >= nodes_max) {
    errno = EINVAL;
    return -1;
  }
  mask[node / word_bits] = 1ul << node % word_bits;
  // The kernel takes one bit less than it is told.
  return ::syscall(SYS_mbind, at, bytes, policy_preferred, mask, nodes_max + 1ul, 0);
}

// Pages of at most one huge page, by address.
struct Pages {
  void* at[pages_max];
  uint32_t count = 0;
};

// Keeps of `pages` those that are not on `node`.
int keep_absent(const NodeCalls& calls, Pages& pages, int node) {
  int status[pages_max];
  if (calls.move_pages(pages.count, pages.at, nullptr, status) != 0) return errno;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < pages.count; ++i)
    if (status[i] != node) pages.at[kept++] = pages.at[i];
  pages.count = kept;
  return 0;
}

// Asks for all of them to be moved. 0, or why some are not: how many went only keep_absent() says.
int ask(const NodeCalls& calls, Pages& pages, uint32_t count, int node) {
  int nodes[pages_max], status[pages_max];
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i] = node;
    status[i] = -EBUSY;  // the kernel says nothing of pages whose copy was refused
  }
  const long failed = calls.move_pages(count, pages.at, nodes, status);
  if (failed < 0) return errno;
  for (uint32_t i = 0; i < count; ++i)
    if (status[i] == -EACCES || status[i] == -ENOMEM) return -status[i];
  return failed > 0 ? EBUSY : 0;
}

// At most a huge page. `*left`: pages that are elsewhere still; `*why`: because of that.
int bring_some(const NodeCalls& calls, char* at, uint64_t bytes, int node, uint64_t* left, int* why) {
  Pages pages;
  int asked = 0;
  for (int turn = 0; turn < turns_max; ++turn) {
    if (::madvise(at, bytes, MADV_POPULATE_READ) != 0) return errno;
    pages.count = static_cast<uint32_t>(bytes / page_bytes);
    for (uint32_t i = 0; i < pages.count; ++i) pages.at[i] = at + i * page_bytes;
    // One address moves a huge page; naming it twice is an error. Of small pages it moves the first.
    if (turn == 0 && bytes == huge_bytes) asked = ask(calls, pages, 1, node);
    if (const int failed = keep_absent(calls, pages, node); failed != 0) return failed;
    if (pages.count == 0) return 0;
    asked = ask(calls, pages, pages.count, node);
    if (asked != 0 && asked != EBUSY) break;
  }
  if (const int failed = keep_absent(calls, pages, node); failed != 0) return failed;
  *left += pages.count;
  if (pages.count > 0 && *why == 0) *why = asked != 0 ? asked : EBUSY;
  return 0;
}

int bring(const NodeCalls& calls, const NodePart& part, int node) {
  uint64_t left = 0;
  int why = 0;
  for (uint64_t done = 0; done < part.bytes;) {
    const uint64_t bytes = part.bytes - done < huge_bytes ? part.bytes - done : huge_bytes;
    if (const int failed = bring_some(calls, part.at + done, bytes, node, &left, &why); failed != 0)
      return failed;
    done += bytes;
    if (left * page_bytes > part.granule_bytes / left_behind_share) return why;
  }
  return 0;
}

}  // namespace

const NodeCalls kernel_node_calls = {.move_pages = move_pages_of_kernel, .prefer = prefer_of_kernel};

// The policy belongs to the file, whatever mapping it is told through, and stays with it. Told through the
// range's own mapping it would also split that: so through one that is gone again.
int prefer_node(const NodeCalls& calls, const NodePart& part, int node) {
  void* told = ::mmap(nullptr, part.bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, part.fd,
                      static_cast<off_t>(part.offset));
  if (told == MAP_FAILED) return errno;
  const int failed = calls.prefer(told, part.bytes, node) == 0 ? 0 : errno;
  ::munmap(told, part.bytes);
  return failed;
}

int move_to_node(const NodeCalls& calls, const NodePart& part, int from, int to, MoveTimes* times) {
  const uint64_t begin_ns = monotonic_ns();
  int failed = prefer_node(calls, part, to);
  if (failed == 0) failed = bring(calls, part, to);
  if (failed != 0) {
    // Undone as far as the kernel lets us: what does not go back is in the tier it was to go to.
    prefer_node(calls, part, from);
    bring(calls, part, from);
  }
  times->copy_ns = times->stall_ns = monotonic_ns() - begin_ns;
  return failed;
}

}  // namespace terrace::tiering
