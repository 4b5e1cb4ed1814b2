#pragma once
#include <vector>

#include "expansion/expand.h"
#include "expansion/mesh.h"

namespace judge {

/// Members in the order in which blocks are passed on: around a cycle, or from end to end and back.
struct Track {
  std::vector<int> members;
  int directions = 0;  ///< 1 or 2: a cycle sent round so many ways; 0: a line
  double block = 0;    ///< part of the payload that one member brings in
};

/// What of an all-gather runs at the same time as other parts of it: phases one after the other, tracks of a phase at
/// once.
struct Part {
  std::vector<std::vector<Track>> phases;
};
using Way = std::vector<Part>;

/// How a group gathers a payload of 1, by docs/simulation.md, "Which way a group runs its all-gather".
Way choose_way(std::vector<int> group, const Rate& rate, const Mesh& mesh);

/// A message of an all-gather, before it is known what it waits for.
struct Pass {
  int from = 0;
  int to = 0;
  int block = 0;        ///< position on the track of the member whose block it is
  double fraction = 1;  ///< of the block
};

/// Messages of a track edge by edge, in the order in which an edge sends them.
std::vector<std::vector<Pass>> passes(const Track& track);

}  // namespace judge
