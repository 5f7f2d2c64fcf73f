// SPDX-License-Identifier: Apache-2.0
// Feeds the C API of libpenstock.so, and the table behind the proxy, with recordings, traces and
// sequences of calls that are drawn: it may refuse, and nothing else.  What is drawn follows from a
// seed; inputs run in child processes, so that one that ends its process is told by its seed and
// the others go on.
//
// usage: api_fuzz [SUBJECT ...] [--seconds S] [--seed N] [--inputs N]
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "draw.hpp"

namespace penstock::fuzz {
namespace {

// Inputs of a batch share a process; what is made once in a process is drawn again for the next.
struct Subject {
  const char* name;
  std::uint64_t (*once)(Draw&);
  std::uint64_t batch = 2000;
};
constexpr Subject kSubjects[] = {{"simulate", simulate},   {"replay", replay},
                                 {"pager", pager},         {"managed", managed},
                                 {"allocator", allocator}, {"interposed", interposed, 200}};

// Shared with the child that runs inputs.
struct Progress {
  std::uint64_t inputs;
  std::uint64_t calls;
};
// Of one input: of a processor's time, and of a clock's, where it waits for what does not come.
constexpr long kMostSeconds = 60;
constexpr unsigned kMostWaiting = 900;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void run_batch(const Subject& subject, std::uint64_t seed, std::uint64_t count,
                            double end, Progress& progress) {
  for (std::uint64_t i = 0; i < count && now() < end; ++i) {
    alarm(kMostWaiting);
    const itimerval most{{}, {kMostSeconds, 0}};
    setitimer(ITIMER_PROF, &most, nullptr);
    Draw draw(seed + i);
    progress.calls += subject.once(draw);
    ++progress.inputs;
  }
  _exit(0);
}

struct Found {
  std::uint64_t inputs = 0, calls = 0, findings = 0;
};

Found feed(const Subject& subject, std::uint64_t seed, std::uint64_t inputs, double end) {
  static auto* const progress = static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  Found found;
  std::uint64_t next = seed;
  while (next - seed < inputs && now() < end) {
    *progress = {};
    const pid_t child = fork();
    if (child == 0) {
      run_batch(subject, next, std::min(subject.batch, inputs - (next - seed)), end, *progress);
    }
    int status = 0;
    waitpid(child, &status, 0);
    found.inputs += progress->inputs;
    found.calls += progress->calls;
    next += progress->inputs;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      if (progress->inputs == 0) break;
      continue;
    }
    ++found.findings;
    std::printf("%s: the process of seed %llu ended with %s %d\n", subject.name,
                static_cast<unsigned long long>(next), WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    ++next;
  }
  return found;
}

}  // namespace
}  // namespace penstock::fuzz

int main(int count, char** arguments) {
  using namespace penstock::fuzz;  // NOLINT(google-build-using-namespace)
  double seconds = 0;
  std::uint64_t seed = 0;
  std::uint64_t inputs = 2000;
  std::vector<std::string> wanted;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word.rfind("--", 0) == 0 && i + 1 < count) {
      const char* const value = arguments[++i];
      if (word == "--seconds") seconds = std::atof(value);
      if (word == "--seed") seed = std::strtoull(value, nullptr, 0);
      if (word == "--inputs") inputs = std::strtoull(value, nullptr, 0);
    } else {
      wanted.push_back(word);
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::uint64_t findings = 0;
  for (const Subject& subject : kSubjects) {
    bool chosen = wanted.empty();
    for (const std::string& name : wanted) chosen = chosen || name == subject.name;
    if (!chosen) continue;
    const double end = now() + (seconds > 0 ? seconds : 1e9);
    const Found found = feed(subject, seed, seconds > 0 ? ~std::uint64_t{0} - seed : inputs, end);
    std::printf("%s: %llu inputs, %llu calls, %llu findings\n", subject.name,
                static_cast<unsigned long long>(found.inputs),
                static_cast<unsigned long long>(found.calls),
                static_cast<unsigned long long>(found.findings));
    findings += found.findings;
  }
  return findings == 0 ? 0 : 1;
}
