// SPDX-License-Identifier: Apache-2.0
// The completion scripts, run by a real bash, zsh and fish.
#include "cli/help/completion.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/terminal/verb.h"
#include "tests/support/skip.h"

using namespace terrace::cli;

namespace {

std::string printed_by(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char part[512];
  while (fgets(part, sizeof(part), pipe) != nullptr) text += part;
  CHECK(pclose(pipe) == 0);
  return text;
}

class Completer {
 public:
  Completer() {
    char path[] = "/tmp/terrace-completion-XXXXXX";
    const int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    path_ = path;
    Context context;
    const CommandLine line = build_parser(context);
    std::ofstream(path_) << bash_completion(line.root());
  }
  ~Completer() { unlink(path_.c_str()); }

  // What bash offers after these words; the last one is being typed.
  std::set<std::string> after(const std::vector<std::string>& words) const {
    std::string command = "bash -c 'source " + path_ + "; COMP_WORDS=(terrace";
    for (const std::string& word : words) command += " \"" + word + "\"";
    command += "); COMP_CWORD=" + std::to_string(words.size()) +
               "; _terrace; printf \"%s\\n\" \"${COMPREPLY[@]}\"' 2>&1";
    const std::string text = printed_by(command);
    std::set<std::string> offered;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) offered.insert(line);
    }
    return offered;
  }

 private:
  std::string path_;
};

using Words = std::set<std::string>;

}  // namespace

TEST_CASE("Completion: verbs, and the verbs below them") {
  const Completer complete;
  const Words first = complete.after({""});
  for (const char* verb : {"status", "doctor", "daemon", "device", "pool", "lease", "tensor", "run", "check",
                           "completion", "quota", "reserve", "queue", "audit", "fsck"}) {
    CAPTURE(verb);
    CHECK(first.contains(verb));
  }
  CHECK(complete.after({"le"}) == Words{"lease"});
  CHECK(complete.after({"lease", ""}) == Words{"grant", "list", "show", "renew", "revoke", "release", "resize",
                                               "transfer", "offers", "accept", "withdraw", "quarantined",
                                               "exec", "hold", "path", "cdi"});
  CHECK(complete.after({"vm", ""}) == Words{"run", "attach", "resize", "move", "detach", "show", "list"});
  CHECK(complete.after({"kv", ""}) == Words{"format", "stat", "list", "put", "get", "erase", "evict", "flush",
                                            "verify", "policy", "grow", "shrink", "serve"});
  CHECK(complete.after({"lease", "re"}) == Words{"renew", "revoke", "release", "resize"});
  CHECK(complete.after({"device", "dr"}) == Words{"drain"});
  CHECK(complete.after({"pool", "c"}) == Words{"create", "compact"});
  CHECK(complete.after({"--json", "lease", "g"}) == Words{"grant"});
  CHECK(complete.after({"tier", ""}) == Words{"status", "set", "pause", "resume", "map"});
}

TEST_CASE("Completion: options of the verb and the global ones") {
  const Completer complete;
  const Words options = complete.after({"lease", "grant", "--"});
  for (const char* option : {"--size", "--ttl", "--pool", "--mode", "--persistent", "--json", "--socket"}) {
    CAPTURE(option);
    CHECK(options.contains(option));
  }
  CHECK(!options.contains("--grace"));
  CHECK(complete.after({"lease", "grant", "--si"}) == Words{"--size"});
}

TEST_CASE("Completion: values where they are known, none where they are not") {
  const Completer complete;
  CHECK(complete.after({"lease", "grant", "--mode", ""}) ==
        Words{"exclusive", "shared_read_only", "shared_coherent"});
  CHECK(complete.after({"lease", "grant", "--mode", "shared_r"}) == Words{"shared_read_only"});
  CHECK(complete.after({"lease", "grant", "--size", ""}).empty());
  CHECK(complete.after({"pool", "create", "--placement", "s"}) == Words{"striped", "spread"});
  CHECK(complete.after({"lease", "list", "--phase", "q"}) == Words{"quarantined"});
  CHECK(complete.after({"tier", "set", "1", "--policy", "stat"}) == Words{"static"});
  CHECK(complete.after({"completion", ""}) == Words{"bash", "zsh", "fish"});
  CHECK(complete.after({"status", "--socket", "/proc/self/cmdl"}) == Words{"/proc/self/cmdline"});
}

TEST_CASE("Completion: an option's value is not taken for a verb") {
  const Completer complete;
  CHECK(complete.after({"--socket", "x", "le"}) == Words{"lease"});
}

namespace {

// A `terrace` that answers what the scripts ask a daemon for, and says how it was asked.
class LiveTerrace {
 public:
  LiveTerrace() {
    char path[] = "/tmp/terrace-live-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    folder_ = path;
    std::ofstream(folder_ / "terrace") << "#!/bin/sh\n"
                                          "echo \"$@\" >> \"$(dirname \"$0\")/asked\"\n"
                                          "case \"$*\" in\n"
                                          "  *'pool list'*) echo main; echo spare ;;\n"
                                          "  *'lease list'*) printf '7\\tscratch\\n' ;;\n"
                                          "  *'device list'*) echo emu:cxl0 ;;\n"
                                          "esac\n";
    std::filesystem::permissions(folder_ / "terrace", std::filesystem::perms::owner_all);
  }
  ~LiveTerrace() { std::filesystem::remove_all(folder_); }

  std::string asked() const {
    std::ifstream file(folder_ / "asked");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // What `shell` prints when it runs `script`, with this terrace first on its path.
  std::string run(const std::string& shell, const std::string& script) const {
    const std::filesystem::path file = folder_ / "script";
    std::ofstream(file) << script;
    const std::string command = "PATH=" + folder_.string() + ":$PATH HOME=" + folder_.string() + " " + shell +
                                " " + file.string() + " 2>&1";
    return printed_by(command);
  }

 private:
  std::filesystem::path folder_;
};

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    if (!line.empty()) lines.insert(line.substr(0, line.find('\t')));  // fish says what each is for
  return lines;
}

std::string script_of(std::string (*make)(Command)) {
  Context context;
  const CommandLine line = build_parser(context);
  return make(line.root());
}

bool has_program(const std::string& name) {
  return std::system(("command -v " + name + " > /dev/null 2>&1").c_str()) == 0;
}

Words bash_after(const LiveTerrace& live, const std::string& words, size_t count) {
  return lines_of(live.run("bash", script_of(bash_completion) + "COMP_WORDS=(terrace " + words +
                                       "); COMP_CWORD=" + std::to_string(count) +
                                       "; _terrace; printf '%s\\n' \"${COMPREPLY[@]}\"\n"));
}

// zsh completes only at a prompt: `compadd` is replaced by what prints its words.
Words zsh_after(const LiveTerrace& live, const std::string& words, size_t count) {
  return lines_of(live.run("zsh -f", script_of(zsh_completion) +
                                         "compadd() { shift; print -l -- \"$@\"; }\n_files() { print files; }\n"
                                         "words=(terrace " +
                                         words + "); CURRENT=" + std::to_string(count + 1) +
                                         "; _terrace; true\n"));
}

Words fish_after(const LiveTerrace& live, const std::string& line) {
  return lines_of(
      live.run("fish --no-config", script_of(fish_completion) + "complete -C 'terrace " + line + "'\n"));
}

}  // namespace

TEST_CASE("Completion: pools, leases and devices that there are, of the daemon that is meant") {
  const LiveTerrace live;
  CHECK(bash_after(live, "lease grant --pool ''", 4) == Words{"main", "spare"});
  CHECK(bash_after(live, "lease show ''", 3) == Words{"7", "scratch"});
  CHECK(bash_after(live, "device drain ''", 3) == Words{"emu:cxl0"});
  CHECK(live.asked().find("--socket") == std::string::npos);
  CHECK(bash_after(live, "--socket /tmp/x pool show ''", 5) == Words{"main", "spare"});
  CHECK(live.asked().find("--socket /tmp/x --timeout 2s pool list") != std::string::npos);
}

TEST_CASE("Completion: zsh") {
  if (!has_program("zsh")) {
    TERRACE_SKIP(shells, "a script for zsh");
    return;
  }
  const LiveTerrace live;
  CHECK(zsh_after(live, "pool ''", 2).contains("create"));
  CHECK(zsh_after(live, "lease grant --pool ''", 4) == Words{"main", "spare"});
  CHECK(zsh_after(live, "lease show ''", 3) == Words{"7", "scratch"});
  CHECK(zsh_after(live, "lease grant --mode ''", 4) ==
        Words{"exclusive", "shared_read_only", "shared_coherent"});
  CHECK(zsh_after(live, "tensor import ''", 3) == Words{"files"});
  const Words options = zsh_after(live, "lease grant --", 3);
  CHECK(options.contains("--size"));
  CHECK(options.contains("--json"));
  CHECK(!options.contains("--grace"));
}

TEST_CASE("Completion: fish") {
  if (!has_program("fish")) {
    TERRACE_SKIP(shells, "a script for fish");
    return;
  }
  const LiveTerrace live;
  CHECK(fish_after(live, "lease re") == Words{"renew", "revoke", "release", "resize"});
  CHECK(fish_after(live, "lease grant --pool ") == Words{"main", "spare"});
  CHECK(fish_after(live, "lease show ") == Words{"7", "scratch"});
  CHECK(fish_after(live, "lease grant --mode ") == Words{"exclusive", "shared_read_only", "shared_coherent"});
  const Words options = fish_after(live, "lease grant --");
  CHECK(options.contains("--size"));
  CHECK(options.contains("--json"));
  CHECK(!options.contains("--grace"));
}
