// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_inspect.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "allocator/supply/protocol.h"
#include "cli/program/find_program.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t interpreter_line_bytes_max = 255;

// The file's bytes, read-only; empty when it cannot be read (a program may be executable only).
class FileView {
 public:
  explicit FileView(const std::string& path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || status.st_size <= 0) return;
    void* at = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (at != MAP_FAILED) bytes_ = {static_cast<const char*>(at), static_cast<size_t>(status.st_size)};
  }
  ~FileView() {
    if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  FileView(const FileView&) = delete;
  FileView& operator=(const FileView&) = delete;
  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

// The loader drops LD_PRELOAD for a program that gains rights by being started.
bool gains_rights(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  if ((status.st_mode & S_ISUID) != 0 && status.st_uid != ::geteuid()) return true;
  if ((status.st_mode & S_ISGID) != 0 && (status.st_mode & S_IXGRP) != 0 && status.st_gid != ::getegid())
    return true;
  return ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0 && ::geteuid() != 0;
}

// Texts that only the inside of an allocator holds; a program that is merely linked to one does not.
const char* allocator_inside(std::string_view bytes) {
  // In two parts, put together here: in one they would be found in this very program.
  struct Mark {
    const char* name;
    const char* before;
    const char* behind;
  };
  constexpr std::array<Mark, 3> marks = {Mark{"jemalloc", "<", ">: "}, Mark{"tcmalloc", "", ": large alloc"},
                                         Mark{"mimalloc", "", ": error: "}};
  for (const Mark& mark : marks)
    if (bytes.find(std::string(mark.before) + mark.name + mark.behind) != std::string_view::npos)
      return mark.name;
  return nullptr;
}

std::string obstacle_of_elf(std::string_view bytes) {
  Elf64_Ehdr header;
  if (bytes.size() < sizeof(header)) return "it is no complete ELF program";
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64)
    return "it is built for another machine than the preload library";
  bool has_loader = false;
  for (unsigned int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    uint64_t at = header.e_phoff + uint64_t{i} * header.e_phentsize;
    if (header.e_phentsize < sizeof(part) || at > bytes.size() || bytes.size() - at < sizeof(part)) break;
    std::memcpy(&part, bytes.data() + at, sizeof(part));
    has_loader = has_loader || part.p_type == PT_INTERP;
  }
  if (!has_loader) return "it is statically linked, so no library can take the place of its malloc";
  if (const char* name = allocator_inside(bytes))
    return std::string("it brings its own allocator inside (") + name + "), which does not call malloc";
  // In two parts, as above.
  if (bytes.find(std::string("__asan") + "_init") != std::string_view::npos)
    return "it is built with AddressSanitizer, which needs its own malloc";
  return {};
}

// "#!/usr/bin/env python3" -> what the kernel would start: the interpreter, or for env the program behind it.
std::vector<std::string> interpreter_words(std::string_view bytes) {
  std::string line(bytes.substr(2, std::min(bytes.find('\n'), interpreter_line_bytes_max)));
  std::vector<std::string> words;
  for (size_t at = 0; at < line.size();) {
    size_t begin = line.find_first_not_of(" \t\r\n", at);
    if (begin == std::string::npos) break;
    size_t end = line.find_first_of(" \t\r\n", begin);
    words.push_back(line.substr(begin, end - begin));
    at = end == std::string::npos ? line.size() : end;
  }
  return words;
}

}  // namespace

Result<ProgramFacts> inspect_program(const std::string& program) {
  ProgramFacts facts;
  TERRACE_ASSIGN_OR_RETURN(facts.path, find_program(program, "terrace run"));
  std::string file = facts.path;
  for (int depth = 0; depth < 4; ++depth) {
    if (gains_rights(file)) {
      facts.obstacle =
          "it is set-uid, set-gid or has file capabilities, and the loader ignores LD_PRELOAD then";
      return facts;
    }
    FileView view(file);
    std::string_view bytes = view.bytes();
    if (bytes.empty()) return facts;  // unreadable: the loader will say what it can do
    if (bytes.substr(0, SELFMAG) == std::string_view(ELFMAG, SELFMAG)) {
      facts.obstacle = obstacle_of_elf(bytes);
      return facts;
    }
    if (bytes.substr(0, 2) != "#!")
      return Error{.code = ErrorCode::corrupt,
                   .where = "terrace run",
                   .detail = file + " is neither a program nor a script with a #! line"};
    std::vector<std::string> words = interpreter_words(bytes);
    if (words.empty())
      return Error{
          .code = ErrorCode::corrupt, .where = "terrace run", .detail = file + " has an empty #! line"};
    bool through_env = fs::path(words[0]).filename() == "env" && words.size() > 1 && words[1][0] != '-';
    auto found = find_program(through_env ? words[1] : words[0], "terrace run");
    if (!found.ok()) return found.error();
    file = *found;
  }
  return facts;
}

Result<std::string> find_malloc_library(bool whole_heap) {
  const char* name = whole_heap ? "libterrace_heap.so" : "libterrace_malloc.so";
  std::vector<fs::path> places;
  if (const char* named = std::getenv(supply::library_variable); named != nullptr && *named != 0) {
    places.emplace_back(named);
  } else {
    std::error_code failed;
    fs::path here = fs::read_symlink("/proc/self/exe", failed).parent_path();
    places = {here / name,
              here / "../lib/terrace" / name,
              here / "../lib" / name,
              here / "../lib/x86_64-linux-gnu/terrace" / name,
              here / "../lib/x86_64-linux-gnu" / name,
              here / "../lib64" / name,
              here / "../allocator" / name};
  }
  std::string tried;
  for (const fs::path& place : places) {
    std::error_code failed;
    fs::path whole = fs::canonical(place, failed);
    if (failed) {
      tried += "\n  " + place.lexically_normal().string();
      continue;
    }
    if (whole.string().find_first_of(" :\t\n") != std::string::npos)
      return Error{.code = ErrorCode::invalid_argument,
                   .where = "terrace run",
                   .detail = "LD_PRELOAD cannot hold a path with a space or colon: " + whole.string()};
    return whole.string();
  }
  return Error{.code = ErrorCode::not_found,
               .where = "terrace run",
               .detail = std::string(name) + " is not at" + tried + "\n  set " + supply::library_variable +
                         " to its place"};
}

}  // namespace terrace::cli
