// SPDX-License-Identifier: Apache-2.0
// The tier pages of this machine's processes (core/layout/tier_page.h), read as what they are: files that any
// process of their user can have filled with anything. Everything is copied and checked before it is used.
//
// Place     Below `terrace tier`; needs no daemon.
// Threads   One.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/layout/tier_page.h"

namespace terrace::cli {

// Where errors of `terrace tier` come from.
inline constexpr const char* tier_where = "tier";

struct TierRangeView {
  uint32_t index = 0;              // in the page
  layout::TierRange numbers = {};  // as told; its texts are not terminated: use those below
  layout::TierState state = layout::TierState::absent;
  std::string name, policy, reason;  // printable
  bool has_cells = false;            // they lie inside the file and fit the range

  uint64_t granule_bytes() const { return uint64_t{1} << numbers.granule_bytes_log2; }
};

struct TierPageView {
  std::string path;
  uint32_t uid = 0;  // of the directory and file
  int pid = 0;
  uint64_t start_ticks = 0;
  std::string program;  // printable
  std::vector<TierRangeView> ranges;
  std::vector<std::string> problems;  // what of it could not be taken

  std::string title() const { return program + "[" + std::to_string(pid) + "]"; }
};

// Decimal, without leading zeros, at most `max`: one name a number. nullopt: it is something else.
std::optional<uint32_t> plain_number(std::string_view text, uint32_t max);
// The process that a page's file name stands for.
std::optional<int> process_number(std::string_view name);

enum class TierAccess : uint8_t { read, write };

// One page, mapped. Its process may cut the file short at any time: no access here can end the program.
class TierPageFile {
 public:
  // `name`: a process's number. The file has to be an ordinary one of `uid`, with one name.
  // Errors    not_found          no such file, or what its process has not finished making
  //           permission_denied, io_error
  //           corrupt            it is no tier page; says why
  //           version_mismatch   of another version
  static Result<TierPageFile> open(int directory_fd, const std::string& directory, const std::string& name,
                                   uint32_t uid, TierAccess access);
  TierPageFile(TierPageFile&& other) noexcept;
  TierPageFile& operator=(TierPageFile&&) = delete;
  ~TierPageFile();

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }

  // Errors    corrupt   the file was cut short meanwhile, or says that it is another process's
  Result<TierPageView> read() const;
  // The cells of a range that read() returned with has_cells.
  // Errors    corrupt   as above
  Result<std::vector<uint8_t>> cells(const TierRangeView& range) const;

  // Fields of a range, for requests.
  // Errors    corrupt   as above
  Result<uint32_t> load(uint32_t range, size_t offset) const;   // acquire
  Status store(uint32_t range, size_t offset, uint32_t value);  // release
  Status store_bytes(uint32_t range, size_t offset, const void* from, size_t bytes);

 private:
  TierPageFile(UniqueFd fd, std::string path, uint32_t uid, int pid, char* at, uint64_t bytes);
  Status copy_words(uint64_t offset, void* to, size_t bytes) const;
  char* field(uint32_t range, size_t offset) const;

  UniqueFd fd_;
  std::string path_;
  uint32_t uid_;
  int pid_;
  char* at_;
  uint64_t bytes_;
};

// Where pages and processes are. For tests another place.
struct TierPlaces {
  std::string prefix = layout::tier_page_directory;  // and the uid
  std::string proc = "/proc";
  std::optional<uint32_t> uid;  // of this user only; none: of all
  static TierPlaces own();      // of all users for root, else of this one
};

struct TierScan {
  std::vector<TierPageView> pages;    // by uid and pid; of processes that live
  std::vector<std::string> problems;  // files and directories that are not what they should be, in words
  uint32_t swept = 0;                 // files of processes that are gone, removed
};

// --- tier_scan.cc

// Looks at all pages. What is not there is no error; what cannot be looked at is a problem.
TierScan scan_tier_pages(const TierPlaces& places);

// Opens the page of a process that a scan returned.
// Errors    as TierPageFile::open
Result<TierPageFile> open_tier_page(const TierPlaces& places, const TierPageView& page, TierAccess access);

// --- tier_process.cc

enum class ProcessState : uint8_t {
  gone,
  other,  // the number is another process's now, or the same one runs another program
  runs,
  stopped,  // by a signal, or a debugger
  unknown,  // /proc does not say
};

// What became of the process that made `page`.
ProcessState process_of(const TierPlaces& places, const TierPageView& page);
// Whether there is a process of this number at all; unknown is true.
bool process_exists(const TierPlaces& places, int pid);

}  // namespace terrace::cli
