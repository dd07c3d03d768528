#include "daemon/memory/pins/paused_holders.h"

#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

namespace terrace::daemon {
namespace {

// What is under way in the memory has that long to end: direct I/O takes microseconds to milliseconds.
constexpr int settle_looks = 25;
constexpr std::chrono::milliseconds settle_pause{2};

struct Running {
  char state = 0;      // as in proc(5): 'T' is stopped
  uint64_t start = 0;  // in ticks since boot: no other process of that number has it
};

std::optional<Running> look_at(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  Running found;
  std::string skipped;
  rest >> found.state;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  if (!(rest >> found.start)) return std::nullopt;
  return found;
}

}  // namespace

PausedHolders::PausedHolders(const std::vector<pid_t>& processes, std::string note) : note_(std::move(note)) {
  std::ostringstream text;
  for (const pid_t process : processes) {
    const auto running = process == ::getpid() || process <= 1 ? std::nullopt : look_at(process);
    if (!running.has_value() || running->state == 'T' || running->state == 't') continue;
    stopped_.push_back(process);
    text << process << ' ' << running->start << '\n';
  }
  if (stopped_.empty()) return;
  if (!note_.empty()) {
    std::ofstream file(note_, std::ios::trunc);
    file << text.str() << std::flush;
    if (!file) {  // whom nobody could let go on is not stopped
      stopped_.clear();
      return;
    }
  }
  for (const pid_t process : stopped_) (void)::kill(process, SIGSTOP);
}

PausedHolders::~PausedHolders() {
  for (const pid_t process : stopped_) (void)::kill(process, SIGCONT);
  if (!stopped_.empty() && !note_.empty()) ::unlink(note_.c_str());
}

void PausedHolders::thaw(const std::string& note) {
  std::ifstream file(note);
  pid_t process = 0;
  uint64_t start = 0;
  while (file >> process >> start) {
    const auto running = look_at(process);
    if (running.has_value() && running->start == start && running->state == 'T') (void)::kill(process, SIGCONT);
  }
  if (file.is_open()) ::unlink(note.c_str());
}

std::unique_ptr<PausedHolders> settle(PagePins& pins, const std::vector<PageRange>& ranges, PageBlock block,
                                      const std::function<std::vector<pid_t>()>& holders,
                                      const std::string& note) {
  std::unique_ptr<PausedHolders> paused;
  for (int looks = 0; looks < settle_looks; ++looks) {
    const auto now = pins.look(ranges, block);
    if (!now.ok() || now->none()) break;
    if (paused == nullptr) paused = std::make_unique<PausedHolders>(holders(), note);
    std::this_thread::sleep_for(settle_pause);
  }
  return paused;
}

}  // namespace terrace::daemon
