#include "daemon/config/log.h"

#include <fcntl.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <mutex>

#include "core/base/unique_fd.h"

namespace terrace::daemon {
namespace {

class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = json_escape({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessage>(); }
};

// Standard error, or a file that can be another one from some line on. Unbuffered: a line is in the kernel's hands
// before whatever follows it.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Not valid: standard error.
  void write_to(UniqueFd file) {
    const std::lock_guard lock(mutex_);
    file_ = std::move(file);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const int to = file_.valid() ? file_.get() : STDERR_FILENO;
    for (size_t done = 0; done < line.size();) {
      const ssize_t bytes = ::write(to, line.data() + done, line.size() - done);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0) spdlog::throw_spdlog_ex("a line of the log cannot be written", errno);
      done += static_cast<size_t>(bytes);
    }
  }
  void flush_() override {}

  UniqueFd file_;
};

std::unique_ptr<spdlog::formatter> formatter_of(const DaemonConfig& config) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (config.log_format == LogFormat::json) {
    formatter->add_flag<JsonMessage>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","pid":%P,"message":"%*"})");
  } else {
    formatter->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  }
  return formatter;
}

}  // namespace

std::string json_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out;
}

Status reopen_log(const DaemonConfig& config) {
  UniqueFd file;
  if (!config.log_file.empty()) {
    file.reset(::open(config.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!file.valid())
      return os_error(errno, "reopen_log", "the log file " + config.log_file + " cannot be opened");
  }
  spdlog::logger& logger = *spdlog::default_logger_raw();
  for (const spdlog::sink_ptr& sink : logger.sinks())
    if (auto* ours = dynamic_cast<LogSink*>(sink.get()); ours != nullptr) ours->write_to(std::move(file));
  logger.set_formatter(formatter_of(config));
  logger.set_level(spdlog::level::from_str(config.log_level));
  return {};
}

void set_up_log(const DaemonConfig& config) {
  auto logger = std::make_shared<spdlog::logger>("terraced", std::make_shared<LogSink>());
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  if (Status status = reopen_log(config); !status.ok()) throw spdlog::spdlog_ex(status.error().to_string());
}

}  // namespace terrace::daemon
