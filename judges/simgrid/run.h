#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "expansion/expand.h"
#include "expansion/mesh.h"

namespace judge {

/// One thing the core does. `index`: collective, sequence of a loop, or number of a copy.
struct Step {
  enum class Kind { compute, start, done, sync, copy_start, copy_done, loop } kind = Kind::compute;
  int index = -1;
  double seconds = 0;
  std::int64_t trips = 1;
};

struct Program {
  std::vector<Collective> collectives;
  std::vector<std::vector<Step>> sequences;
  int entry = 0;
  int block = -1;  ///< the repeated sequence; -1 where nothing repeats
};

struct ProgramTimes {
  double step_seconds = 0;
  double block_seconds = 0;  ///< of the block's last trip
  double exposed_seconds = 0;
  std::int64_t messages = 0;
};

/// Which of SimGrid's network models shares the links: "CM02" or "L07". Both run without latency on the links, because
/// a message waits its hops out before it asks for bandwidth; CM02 then is max-min fair, L07 fair by bottleneck.
void configure(const std::string& model);

/// When each collective ends. Runs SimGrid's engine: once in a process.
std::vector<double> time_collectives(const Mesh& mesh, const std::vector<Collective>& collectives,
                                     const std::vector<double>& starts);

/// Times of a whole program. Runs SimGrid's engine: once in a process.
ProgramTimes time_program(const Mesh& mesh, const Program& program);

}  // namespace judge
