// SPDX-License-Identifier: Apache-2.0
#include "daemon/consent/consent_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

namespace terrace::daemon {
namespace {

constexpr const char* file_where = "consents";
constexpr size_t old_lines_max = 4096;  // that are not worth a new file

std::string line_of(const std::string& object, const Consent& consent) {
  std::string holder = consent.holder;
  std::replace(holder.begin(), holder.end(), '\n', ' ');
  std::ostringstream line;
  line << "agreed " << object << ' ' << consent.process.pid << ' ' << consent.process.started << ' '
       << consent.process.space << ' ' << consent.number << ' ' << consent.uid << ' ' << consent.spared << ' '
       << holder << '\n';
  return line.str();
}

void read_line(const std::string& text, ConsentsByObject& all) {
  std::istringstream line(text);
  std::string word, object;
  line >> word >> object;
  if (!line || object.empty()) return;
  if (word == "forgotten") all.erase(object);
  if (word != "agreed") return;
  Consent consent;
  line >> consent.process.pid >> consent.process.started >> consent.process.space >> consent.number >>
      consent.uid >> consent.spared;
  if (!line || consent.process.pid <= 1 || consent.process.pid > INT32_MAX) return;
  line.get();
  std::getline(line, consent.holder);
  std::vector<Consent>& known = all[object];
  const auto same = std::find_if(known.begin(), known.end(),
                                 [&consent](const Consent& one) { return one.same_process(consent); });
  if (same == known.end())
    known.push_back(std::move(consent));
  else
    *same = std::move(consent);
}

bool write_whole(int fd, const std::string& bytes) {
  return ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

ConsentsByObject ConsentFile::read(const std::string& path, const std::string& boot_id) {
  ConsentsByObject all;
  std::ifstream file(path);
  std::string line;
  if (boot_id.empty() || !std::getline(file, line) || line != "boot " + boot_id) return all;
  while (std::getline(file, line) && !file.eof()) read_line(line, all);
  return all;
}

Status ConsentFile::write_anew(const ConsentsByObject& all) {
  if (path_.empty()) return {};
  std::string text = "boot " + boot_id_ + "\n";
  lines_ = 0;
  for (const auto& [object, consents] : all)
    for (const Consent& consent : consents) {
      text += line_of(object, consent);
      ++lines_;
    }
  const std::string fresh = path_ + ".new";
  file_ =
      UniqueFd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_.valid() || !write_whole(file_.get(), text) || ::rename(fresh.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    file_ = UniqueFd();
    return os_error(error, file_where, "cannot write " + path_);
  }
  bytes_ = static_cast<off_t>(text.size());
  return {};
}

Status ConsentFile::agreed(const std::string& object, const Consent& consent, const ConsentsByObject& all) {
  return append(line_of(object, consent), all);
}

Status ConsentFile::forgotten(const std::string& object, const ConsentsByObject& all) {
  return append("forgotten " + object + "\n", all);
}

Status ConsentFile::append(const std::string& line, const ConsentsByObject& all) {
  if (path_.empty()) return {};
  if (!file_.valid() || lines_ > 4 * all.size() + old_lines_max) return write_anew(all);
  if (!write_whole(file_.get(), line)) {
    const int error = errno;
    // Half a line would spoil the next one.
    if (::ftruncate(file_.get(), bytes_) != 0) file_ = UniqueFd();
    return os_error(error, file_where, "cannot write " + path_);
  }
  bytes_ += static_cast<off_t>(line.size());
  ++lines_;
  return {};
}

}  // namespace terrace::daemon
