// SPDX-License-Identifier: Apache-2.0
// All tier pages of this machine: whose directories are believed, and what is swept.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "cli/terminal/output.h"
#include "cli/tier/page_directory.h"
#include "cli/tier/tier_pages.h"

namespace terrace::cli {
namespace {

bool is_over(ProcessState state) {
  return state == ProcessState::gone || state == ProcessState::other;
}

// Removes the file of a process that is gone, unless another one has been made in its place meanwhile.
void sweep(const UniqueFd& directory, const std::string& name, ino_t inode, TierScan& scan) {
  struct stat now {};
  if (::fstatat(directory.get(), name.c_str(), &now, AT_SYMLINK_NOFOLLOW) != 0 || now.st_ino != inode) return;
  if (::unlinkat(directory.get(), name.c_str(), 0) == 0) ++scan.swept;
}

void look_at_file(const TierPlaces& places, const UniqueFd& directory, const std::string& path,
                  const std::string& name, uint32_t uid, TierScan& scan) {
  struct stat about {};
  const auto pid = process_number(name);
  if (::fstatat(directory.get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) return;
  const auto file = TierPageFile::open(directory.get(), path, name, uid, TierAccess::read);
  auto page = file.ok() ? file->read() : Result<TierPageView>(file.error());
  if (!page.ok()) {
    // Of a process that is gone nobody can need it, whatever it holds.
    if (pid.has_value() && S_ISREG(about.st_mode) && about.st_uid == uid && !process_exists(places, *pid))
      return sweep(directory, name, about.st_ino, scan);
    if (page.error().code != ErrorCode::not_found) scan.problems.push_back(page.error().detail);
    return;
  }
  if (is_over(process_of(places, *page))) return sweep(directory, name, about.st_ino, scan);
  for (const std::string& problem : page->problems) scan.problems.push_back(page->path + " " + problem);
  scan.pages.push_back(std::move(*page));
}

}  // namespace

TierPlaces TierPlaces::own() {
  TierPlaces places;
  if (::geteuid() != 0) places.uid = ::geteuid();
  return places;
}

TierScan scan_tier_pages(const TierPlaces& places) {
  TierScan scan;
  look_at_files(places.prefix, places.uid, scan.problems,
                [&](const UniqueFd& directory, const std::string& path, const std::string& name, uint32_t uid) {
                  look_at_file(places, directory, path, name, uid, scan);
                });
  for (std::string& problem : scan.problems) problem = printable(problem);
  return scan;
}

Result<TierPageFile> open_tier_page(const TierPlaces& places, const TierPageView& page, TierAccess access) {
  const std::string path = places.prefix + std::to_string(page.uid);
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd directory, open_directory_of(path, page.uid));
  TERRACE_ASSIGN_OR_RETURN(
      TierPageFile file, TierPageFile::open(directory.get(), path, std::to_string(page.pid), page.uid, access));
  TERRACE_ASSIGN_OR_RETURN(const TierPageView now, file.read());
  if (now.start_ticks != page.start_ticks)
    return Error{
        .code = ErrorCode::not_found, .where = tier_where, .detail = page.path + " is another process's now"};
  return file;
}

}  // namespace terrace::cli
