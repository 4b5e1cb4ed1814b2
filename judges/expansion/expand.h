#pragma once
#include <string>
#include <utility>
#include <vector>

#include "expansion/mesh.h"

namespace judge {

/// A collective over devices, the placement already applied.
struct Collective {
  std::string kind;  ///< HLO's opcode: "all-gather", ...
  double bytes = 0;
  std::vector<std::vector<int>> groups;
  std::vector<std::pair<int, int>> pairs;  ///< of a permute
  std::vector<std::vector<int>> rings;     ///< prescribed orders, one a group; none: chosen by the rules
  int directions = 2;                      ///< of the prescribed rings
};

/// One message. It starts once the one before it in its lane and all that it waits for have arrived.
struct Message {
  int from = 0;
  int to = 0;
  double bytes = 0;
  int latency_hops = 0;
  std::vector<int> waits;  ///< messages, by index
};

/// What a collective sends. Lanes send their messages one after the other.
struct Plan {
  std::vector<Message> messages;
  std::vector<std::vector<int>> lanes;
};

Plan expand(const Collective& collective, const Mesh& mesh);

/// Adds the messages of another plan; neither waits for the other.
void append(Plan& plan, Plan other);

}  // namespace judge
