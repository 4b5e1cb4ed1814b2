#include "aoizora/candidates/signature.h"

#include <limits>
#include <map>
#include <set>
#include <utility>

namespace aoizora::candidates {
namespace {

using workload::Dim;
using workload::Tensor;
using workload::Workload;

std::vector<Tensor> first_of_each(const std::vector<Tensor>& tensors) {
  std::set<std::vector<std::string>> seen;
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) {
    std::vector<std::string> axes;
    for (const Dim& dim : tensor.dims) axes.push_back(dim.axis);
    if (seen.insert(axes).second) result.push_back(tensor);
  }
  return result;
}

/// Who stands before and after a mesh axis in the lists that name it: one neighbour, none, or not always the same.
struct Neighbour {
  bool known = false;
  bool always = true;
  std::string name;  ///< empty: end of the list

  void meet(const std::string& other) {
    if (!known) name = other;
    always = always && (!known || name == other);
    known = true;
  }
  bool is(const std::string& other) const { return known && always && name == other; }
};

// A mesh axis joins the one before it where the two are neighbours in every list that names either: together they act
// as one axis.
std::set<std::string> joined_to_previous(const std::vector<TensorSharding>& shardings) {
  std::map<std::string, Neighbour> before, after;
  for (const TensorSharding& sharding : shardings) {
    for (const auto& dim : sharding) {
      for (std::size_t i = 0; i < dim.size(); ++i) {
        before[dim[i]].meet(i == 0 ? "" : dim[i - 1]);
        after[dim[i]].meet(i + 1 == dim.size() ? "" : dim[i + 1]);
      }
    }
  }
  std::set<std::string> joined;
  for (const auto& [axis, previous] : before) {
    if (previous.always && !previous.name.empty() && after[previous.name].is(axis)) joined.insert(axis);
  }
  return joined;
}

// Lengths first, so that no text can imitate another.
void append(std::string& out, const std::string& text) { out += std::to_string(text.size()) + ":" + text; }

}  // namespace

DistinctTensors distinct_tensors(const Workload& workload) {
  return {first_of_each(workload.weights), first_of_each(workload.activations)};
}

// Splitting and merging: joined axes count as one whose size is the product, so every split form of a mesh comes to the
// same. Renaming: axes are numbered as they first appear. An axis that divides nothing never appears.
std::string canonical_shardings(const Candidate& candidate, const std::vector<TensorSharding>& shardings) {
  const std::set<std::string> joined = joined_to_previous(shardings);
  std::map<std::string, std::size_t> number;
  std::vector<std::int64_t> sizes;
  std::string body;
  for (const TensorSharding& sharding : shardings) {
    body += '[';
    for (std::size_t d = 0; d < sharding.size(); ++d) {
      if (d > 0) body += '|';
      bool first = true;
      for (std::size_t i = 0; i < sharding[d].size(); ++i) {
        const std::string& axis = sharding[d][i];
        const bool joins = joined.count(axis) > 0;
        const auto [at, added] = number.try_emplace(axis, sizes.size() - (joins ? 1 : 0));
        if (added && !joins) sizes.push_back(1);
        if (added) {
          auto& size = sizes[at->second];
          if (__builtin_mul_overflow(size, candidate.axis_size(axis), &size))
            size = std::numeric_limits<std::int64_t>::max();
        }
        if (joins) continue;
        body += (first ? "" : ",") + std::to_string(at->second);
        first = false;
      }
    }
    body += ']';
  }
  std::string head;
  for (const std::int64_t size : sizes) head += (head.empty() ? "" : "x") + std::to_string(size);
  return head + body;
}

std::string canonical_signature(const Workload& workload, const DistinctTensors& tensors, const Candidate& candidate) {
  std::vector<TensorSharding> shardings;
  for (const Tensor& weight : tensors.weights) shardings.push_back(weight_sharding(candidate, weight));
  for (const Tensor& activation : tensors.activations)
    shardings.push_back(activation_sharding(workload, candidate, activation));
  std::string result = canonical_shardings(candidate, shardings);
  result += ";" + std::string(name(candidate.attention));
  result += ";" + std::to_string(candidate.blocks.queries) + "x" + std::to_string(candidate.blocks.keys);
  for (const auto& [option, value] : candidate.compiler_options) {
    append(result += ";", option);
    append(result, value);
  }
  return result;
}

std::string canonical_signature(const Workload& workload, const Candidate& candidate) {
  return canonical_signature(workload, distinct_tensors(workload), candidate);
}

}  // namespace aoizora::candidates
