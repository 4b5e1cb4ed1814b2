#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace aoizora::baseline {

/// One choice of one node.
struct Choice {
  double cost_seconds = 0;    ///< c_vs
  double resident_bytes = 0;  ///< held all the time: weights
};

struct ChoiceNode {
  std::string name;
  std::vector<Choice> choices;  ///< s in S_v
};

/// What two nodes' choices cost together. Choices of one interface are one class: reshard cost depends on the class.
struct ChoiceEdge {
  int from = 0, to = 0;
  std::vector<int> from_class;       ///< class p of each choice of `from`
  std::vector<int> to_class;         ///< class q of each choice of `to`
  std::vector<double> cost_seconds;  ///< r_pq, row-major over p, q; infinity where the pair is forbidden
  int from_classes = 0, to_classes = 0;
};

/// What must be there at one moment, beside what is resident.
struct MemoryMoment {
  struct NodeTerm {
    int node = 0;
    std::vector<double> bytes;  ///< one a choice
  };
  struct EdgeTerm {
    int edge = 0;
    std::vector<double> bytes;  ///< one a pair of classes, row-major
  };
  std::vector<NodeTerm> nodes;
  std::vector<EdgeTerm> edges;
};

/// A choice for each node, least cost within memory.
struct ChoiceProblem {
  std::vector<ChoiceNode> nodes;
  std::vector<ChoiceEdge> edges;
  std::vector<MemoryMoment> moments;
  double resident_bytes = 0;  ///< the same under every choice
  double memory_bytes = 0;    ///< limit M; 0 for none
};

/// The ILP as sparse rows, the form solvers take:
///
///   minimise  Σ_v Σ_s c_vs x_vs + Σ_e Σ_pq r_pq z_epq
///   one-hot   Σ_s x_vs = 1                                  for each node v
///   edges     Σ_q z_epq = Σ_{s in p} x_us,  Σ_p z_epq = Σ_{s in q} x_vs    for each edge e = (u, v), class p, class q
///   memory    w = Σ_v Σ_s b_vs x_vs,  w + Σ_v Σ_s m_tvs x_vs + Σ_e Σ_pq m_tepq z_epq <= M - b_0   for each moment t
///   x in {0, 1}, z in [0, 1], w >= 0
///
/// x is integral, z follows: with one class on each side the two sums leave z = 1 for that pair alone, which is Alpa's
/// e_uv without its product (Zheng et al. 2022, 4.2). Forbidden pairs have no z. Seconds are counted in milliseconds,
/// bytes in MiB, so that the coefficients lie near 1. Columns: x node by node, z edge by edge, w last.
struct SparseModel {
  std::vector<double> objective, column_lower, column_upper;
  std::vector<std::uint8_t> integrality;  ///< 1: integral
  std::vector<std::int32_t> row_starts;   ///< one more than rows
  std::vector<std::int32_t> column_indices;
  std::vector<double> values;
  std::vector<double> row_lower, row_upper;
  std::vector<std::int32_t> first_column;  ///< of each node's choices
};

/// Stands for an infinite bound: solvers take more than 1e20 as such.
inline constexpr double unbounded = 1e30;

/// Throws InvalidRequest where the problem does not fit together, or has more than 2^26 entries.
SparseModel build_model(const ChoiceProblem& problem);

/// The choice of each node that a solution's columns name: the largest x of each. Throws InvalidRequest where they name
/// none.
std::vector<int> read_solution(const ChoiceProblem& problem, const SparseModel& model, std::span<const double> columns);

/// What a choice for each node costs and holds; infinite for a forbidden pair.
struct Evaluation {
  double cost_seconds = 0;
  double memory_bytes = 0;  ///< the fullest moment
};
Evaluation evaluate(const ChoiceProblem& problem, std::span<const int> choices);

/// A problem as JSON text (null: infinite, a forbidden pair), for tests and for other sources of problems; the model as
/// JSON text. The reader throws ParseError or InvalidRequest.
ChoiceProblem read_problem(const std::string& json);
std::string to_json(const SparseModel& model);

}  // namespace aoizora::baseline
