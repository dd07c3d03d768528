// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/holders/holder_file.h"
#include "daemon/log/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace terrace::daemon {
namespace {

// Lines of old leases that are not worth a new file.
constexpr size_t old_lines_max = 4096;

std::string line_of(LeaseId lease, const ProcessId& process, const LeaseHolders& holders) {
  std::string holder = holders.holder;
  std::replace(holder.begin(), holder.end(), '\n', ' ');
  std::ostringstream line;
  line << "held " << lease.value << ' ' << process.pid << ' ' << process.started << ' ' << process.space << ' '
       << holders.ends << ' ' << holders.unseen << ' ' << holder << '\n';
  return line.str();
}

void read_line(const std::string& text, HolderFile::All& all) {
  std::istringstream line(text);
  std::string word;
  LeaseId lease{};
  line >> word >> lease.value;
  if (!line) return;
  if (word == "forgotten") all.erase(lease);
  if (word != "held") return;
  ProcessId process;
  LeaseHolders holders;
  line >> process.pid >> process.started >> process.space >> holders.ends >> holders.unseen;
  if (!line) return;
  line.get();
  std::getline(line, holders.holder);
  LeaseHolders& known = all[lease];
  holders.processes = std::move(known.processes);
  if (std::find(holders.processes.begin(), holders.processes.end(), process) == holders.processes.end())
    holders.processes.push_back(process);
  known = std::move(holders);
}

bool write_all(int fd, const std::string& bytes) {
  return ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

HolderFile::HolderFile(std::string path) : path_(std::move(path)) {}

HolderFile::All HolderFile::take_over(const std::function<bool(LeaseId)>& lives) {
  All all;
  if (path_.empty()) return all;
  std::ifstream file(path_);
  std::string line;
  // A last line without its end was cut short.
  while (std::getline(file, line) && !file.eof()) read_line(line, all);
  std::erase_if(all, [&lives](const auto& entry) { return !lives(entry.first); });
  if (!write_anew(all)) give_up();
  return all;
}

void HolderFile::handed_over(LeaseId lease, const ProcessId& process, const LeaseHolders& holders,
                             const All& all) {
  append(line_of(lease, process, holders), all);
}

void HolderFile::forgotten(LeaseId lease, const All& all) {
  append("forgotten " + std::to_string(lease.value) + "\n", all);
}

void HolderFile::append(const std::string& line, const All& all) {
  if (!file_.valid()) return;
  const bool written =
      ++lines_ > 4 * all.size() + old_lines_max ? write_anew(all) : write_all(file_.get(), line);
  if (!written) give_up();
}

bool HolderFile::write_anew(const All& all) {
  std::string text;
  lines_ = 0;
  for (const auto& [lease, holders] : all)
    for (const ProcessId& process : holders.processes) {
      text += line_of(lease, process, holders);
      ++lines_;
    }
  const std::string fresh = path_ + ".new";
  file_ = UniqueFd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  return file_.valid() && write_all(file_.get(), text) && ::rename(fresh.c_str(), path_.c_str()) == 0;
}

void HolderFile::give_up() {
  log::warn(
      "{} cannot be written ({}): leases of processes that end while no manager runs are left to their TTL",
      path_, std::strerror(errno));
  file_ = UniqueFd();
  ::unlink(path_.c_str());
}

}  // namespace terrace::daemon
