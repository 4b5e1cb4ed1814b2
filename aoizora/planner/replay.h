#pragma once
#include <map>
#include <string>

#include "aoizora/planner/compiler.h"

namespace aoizora::planner {

/// Answers from recorded text, so that the whole planner runs without JAX. A job's key is replay_key(job); a missing
/// key is `refused`. `seed` permutes the order of the answers: the plan must not depend on it.
std::string replay_key(const Job& job);
std::unique_ptr<Compiler> make_replay(std::map<std::string, Answer> recorded, std::vector<std::string> versions,
                                      std::uint64_t seed);

/// A recording on disk: one folder, one gzip-free text file an answer. Throws ParseError.
std::map<std::string, Answer> read_recording(const std::string& folder);
/// Wraps a compiler and writes every answer to `folder` as it comes.
std::unique_ptr<Compiler> record(Compiler& compiler, const std::string& folder);

}  // namespace aoizora::planner
