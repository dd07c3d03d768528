// The completion script, run by a real bash.
#include "cli/completion.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/terminal/verb.h"

using namespace terrace::cli;

namespace {

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
    FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    char part[512];
    while (fgets(part, sizeof(part), pipe) != nullptr) text += part;
    CHECK(pclose(pipe) == 0);
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
                                               "transfer", "offers", "accept", "withdraw", "quarantined"});
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
  CHECK(complete.after({"completion", ""}).contains("bash"));
  CHECK(complete.after({"status", "--socket", "/proc/self/cmdl"}) == Words{"/proc/self/cmdline"});
}

TEST_CASE("Completion: an option's value is not taken for a verb") {
  const Completer complete;
  CHECK(complete.after({"--socket", "x", "le"}) == Words{"lease"});
}
