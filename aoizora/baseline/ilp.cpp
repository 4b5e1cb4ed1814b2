#include "aoizora/baseline/ilp.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "aoizora/errors.h"

namespace aoizora::baseline {
namespace {

constexpr double kMilliseconds = 1e3;
constexpr double kMebibytes = 1.0 / (1024.0 * 1024.0);
constexpr std::size_t kMaximumEntries = std::size_t{1} << 26;
constexpr std::size_t kMaximumWork = std::size_t{1} << 30;

[[noreturn]] void invalid(const std::string& what) { throw InvalidRequest("the choice problem: " + what); }

void require(bool sound, const char* what) {
  if (!sound) invalid(what);
}

void check_classes(const std::vector<int>& classes, std::size_t choices, int count) {
  require(classes.size() == choices, "an edge needs one class for each choice of its nodes");
  for (const int c : classes) require(c >= 0 && c < count, "a class is out of range");
}

void check(const ChoiceProblem& problem) {
  require(!problem.nodes.empty(), "it has no nodes");
  for (const ChoiceNode& node : problem.nodes) {
    if (node.choices.empty()) invalid("the node \"" + node.name + "\" has no choice");
    for (const Choice& c : node.choices)
      require(std::isfinite(c.cost_seconds) && std::isfinite(c.resident_bytes), "a choice's numbers must be finite");
  }
  const auto count = static_cast<int>(problem.nodes.size());
  for (const ChoiceEdge& edge : problem.edges) {
    require(edge.from >= 0 && edge.from < count && edge.to >= 0 && edge.to < count, "an edge names no node");
    check_classes(edge.from_class, problem.nodes[edge.from].choices.size(), edge.from_classes);
    check_classes(edge.to_class, problem.nodes[edge.to].choices.size(), edge.to_classes);
    require(edge.cost_seconds.size() == static_cast<std::size_t>(edge.from_classes) * edge.to_classes,
            "an edge needs one cost for each pair of classes");
    for (const double cost : edge.cost_seconds)
      require(!std::isnan(cost) && cost > -std::numeric_limits<double>::infinity(), "an edge's cost is no number");
  }
  for (const MemoryMoment& moment : problem.moments) {
    for (const auto& term : moment.nodes) {
      require(term.node >= 0 && term.node < count && term.bytes.size() == problem.nodes[term.node].choices.size(),
              "a moment's term does not fit its node");
    }
    for (const auto& term : moment.edges) {
      require(term.edge >= 0 && term.edge < static_cast<int>(problem.edges.size()) &&
                  term.bytes.size() == problem.edges[term.edge].cost_seconds.size(),
              "a moment's term does not fit its edge");
    }
  }
}

class ModelBuilder {
 public:
  explicit ModelBuilder(const ChoiceProblem& problem) : problem_(problem) {}

  SparseModel build() {
    columns();
    for (std::size_t v = 0; v < problem_.nodes.size(); ++v) one_hot(v);
    for (std::size_t e = 0; e < problem_.edges.size(); ++e) marginals(e);
    memory();
    return std::move(model_);
  }

 private:
  std::int32_t column(double objective, bool integral, double upper) {
    model_.objective.push_back(objective);
    model_.column_lower.push_back(0);
    model_.column_upper.push_back(upper);
    model_.integrality.push_back(integral ? 1 : 0);
    return static_cast<std::int32_t>(model_.objective.size() - 1);
  }

  void columns() {
    for (const ChoiceNode& node : problem_.nodes) {
      model_.first_column.push_back(static_cast<std::int32_t>(model_.objective.size()));
      for (const Choice& c : node.choices) column(c.cost_seconds * kMilliseconds, true, 1);
    }
    for (const ChoiceEdge& edge : problem_.edges) {
      pair_columns_.emplace_back();
      for (const double cost : edge.cost_seconds)
        pair_columns_.back().push_back(std::isinf(cost) ? -1 : column(cost * kMilliseconds, false, 1));
      if (model_.objective.size() > kMaximumEntries) invalid("it has more than 2^26 columns");
    }
    resident_column_ = column(0, false, unbounded);
    model_.row_starts.push_back(0);
  }

  void put(std::int32_t at, double value) {
    if (value == 0) return;
    model_.column_indices.push_back(at);
    model_.values.push_back(value);
    if (model_.values.size() > kMaximumEntries) invalid("it has more than 2^26 entries");
  }

  void end_row(double lower, double upper) {
    model_.row_starts.push_back(static_cast<std::int32_t>(model_.values.size()));
    model_.row_lower.push_back(lower);
    model_.row_upper.push_back(upper);
  }

  void one_hot(std::size_t v) {
    for (std::size_t s = 0; s < problem_.nodes[v].choices.size(); ++s)
      put(model_.first_column[v] + static_cast<std::int32_t>(s), 1);
    end_row(1, 1);
  }

  void class_members(int node, const std::vector<int>& classes, int wanted) {
    for (std::size_t s = 0; s < classes.size(); ++s) {
      if (classes[s] == wanted) put(model_.first_column[node] + static_cast<std::int32_t>(s), -1);
    }
  }

  void marginals(std::size_t e) {
    const ChoiceEdge& edge = problem_.edges[e];
    const auto pair = [&](int p, int q) { return pair_columns_[e][p * edge.to_classes + q]; };
    for (int p = 0; p < edge.from_classes; ++p) {
      for (int q = 0; q < edge.to_classes; ++q) {
        if (pair(p, q) >= 0) put(pair(p, q), 1);
      }
      class_members(edge.from, edge.from_class, p);
      end_row(0, 0);
    }
    for (int q = 0; q < edge.to_classes; ++q) {
      for (int p = 0; p < edge.from_classes; ++p) {
        if (pair(p, q) >= 0) put(pair(p, q), 1);
      }
      class_members(edge.to, edge.to_class, q);
      end_row(0, 0);
    }
  }

  void memory() {
    if (problem_.memory_bytes <= 0) return;
    for (std::size_t v = 0; v < problem_.nodes.size(); ++v) {
      for (std::size_t s = 0; s < problem_.nodes[v].choices.size(); ++s)
        put(model_.first_column[v] + static_cast<std::int32_t>(s),
            problem_.nodes[v].choices[s].resident_bytes * kMebibytes);
    }
    put(resident_column_, -1);
    end_row(0, 0);
    if (problem_.moments.size() * model_.objective.size() > kMaximumWork)
      invalid("it has more than 2^30 pairs of a moment and a column");
    const double limit = (problem_.memory_bytes - problem_.resident_bytes) * kMebibytes;
    if (problem_.moments.empty()) {
      put(resident_column_, 1);
      end_row(-unbounded, limit);
    }
    for (const MemoryMoment& moment : problem_.moments) {
      put(resident_column_, 1);
      // A node that comes twice has one entry: solvers refuse a column twice in a row.
      std::vector<double> sums(model_.objective.size(), 0);
      for (const auto& term : moment.nodes) {
        for (std::size_t s = 0; s < term.bytes.size(); ++s) sums[model_.first_column[term.node] + s] += term.bytes[s];
      }
      for (const auto& term : moment.edges) {
        for (std::size_t pq = 0; pq < term.bytes.size(); ++pq) {
          if (pair_columns_[term.edge][pq] >= 0) sums[pair_columns_[term.edge][pq]] += term.bytes[pq];
        }
      }
      for (std::size_t c = 0; c < sums.size(); ++c) put(static_cast<std::int32_t>(c), sums[c] * kMebibytes);
      end_row(-unbounded, limit);
    }
  }

  const ChoiceProblem& problem_;
  SparseModel model_;
  std::vector<std::vector<std::int32_t>> pair_columns_;
  std::int32_t resident_column_ = 0;
};

std::size_t pair_of(const ChoiceEdge& edge, std::span<const int> choices) {
  return static_cast<std::size_t>(edge.from_class[choices[edge.from]]) * edge.to_classes +
         edge.to_class[choices[edge.to]];
}

}  // namespace

SparseModel build_model(const ChoiceProblem& problem) {
  check(problem);
  return ModelBuilder(problem).build();
}

std::vector<int> read_solution(const ChoiceProblem& problem, const SparseModel& model,
                               std::span<const double> columns) {
  if (columns.size() != model.objective.size())
    throw InvalidRequest("the solution has " + std::to_string(columns.size()) + " columns, the model " +
                         std::to_string(model.objective.size()));
  std::vector<int> result;
  for (std::size_t v = 0; v < problem.nodes.size(); ++v) {
    const auto first = columns.begin() + model.first_column[v];
    const auto chosen = std::max_element(first, first + static_cast<std::ptrdiff_t>(problem.nodes[v].choices.size()));
    if (!(*chosen > 0.5)) throw InvalidRequest("the solution chooses nothing for \"" + problem.nodes[v].name + "\"");
    result.push_back(static_cast<int>(chosen - first));
  }
  return result;
}

Evaluation evaluate(const ChoiceProblem& problem, std::span<const int> choices) {
  if (choices.size() != problem.nodes.size()) throw InvalidRequest("one choice for each node is needed");
  for (std::size_t v = 0; v < choices.size(); ++v) {
    if (choices[v] < 0 || choices[v] >= static_cast<int>(problem.nodes[v].choices.size()))
      throw InvalidRequest("the choice " + std::to_string(choices[v]) + " of \"" + problem.nodes[v].name +
                           "\" is out of range");
  }
  Evaluation result;
  double resident = problem.resident_bytes;
  for (std::size_t v = 0; v < choices.size(); ++v) {
    result.cost_seconds += problem.nodes[v].choices[choices[v]].cost_seconds;
    resident += problem.nodes[v].choices[choices[v]].resident_bytes;
  }
  for (const ChoiceEdge& edge : problem.edges) result.cost_seconds += edge.cost_seconds[pair_of(edge, choices)];
  double most = 0;
  for (const MemoryMoment& moment : problem.moments) {
    double held = 0;
    for (const auto& term : moment.nodes) held += term.bytes[choices[term.node]];
    for (const auto& term : moment.edges) held += term.bytes[pair_of(problem.edges[term.edge], choices)];
    most = std::max(most, held);
  }
  result.memory_bytes = resident + most;
  return result;
}

}  // namespace aoizora::baseline
