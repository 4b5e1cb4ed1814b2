#pragma once
#include <string>
#include <vector>

#include "aoizora/baseline/ilp.h"
#include "aoizora/baseline/operators.h"
#include "aoizora/candidates/candidate.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

// An Alpa-style logical search (Zheng et al. 2022, 4.2; the paper's baseline in 6.2): an ILP over the shardings of each
// operator on a logical mesh, with collective costs of a mesh axis that know no placement.
//
// Choices s_v of an operator: to which dimension of its result, or to the contracted one, each mesh axis goes, and how
// its weight is stored. Their costs, times the operator's trips:
//
//   compute       max(FLOPs / rho_dev, bytes / HBM rate), or the attention kernel's steps x cycles / clock
//   weight        all-gather (all-to-all where an axis changes dimension) from how it is stored to how it is used
//   partial sums  all-reduce of the local result over the axes on the contracted dimension; the same for norms
//
// A collective tau over n devices costs alpha_tau + beta_tau phi_tau(n) B, as in the planner's own stage one (paper
// 4.3), whatever links its groups get. Edges e_uv cost the collectives from the producer's layout to the one its reader
// asks for. Nothing overlaps: the objective is the sum.
//
// Memory at each operator, once for all layers: every weight as stored, the activations that later operators of the
// block still read, the copies resharding makes, the gathered weight. Nothing is aliased, no temporary of the compiler
// is known: neither bound of what the compiler needs.
//
// With `rules`, as MaxDiffusion runs a plan, every operator follows one set of axis rules: choice nodes for the rule of
// each logical axis and for the attention kind, joined to the operators by edges whose unequal pairs are forbidden. The
// optimum is a legal candidate, needs no projection. Without, each operator is free, on meshes of two axes as in Alpa:
// no candidate, but what the rules cost.

namespace aoizora::baseline {

struct AlpaOptions {
  std::int64_t hbm_budget_bytes = 0;  ///< 0: the slice's HBM
  bool memory = true;                 ///< hold the plan to the budget
  bool ulysses = true;                ///< offer all-to-all attention beside gathered keys
  bool rules = true;                  ///< one set of axis rules for all operators
};

/// A choice of one operator, in words and parts.
struct AlpaChoice {
  std::string text;  ///< "batch:data sequence:context | stored embed:context"
  double compute_seconds = 0;
  double communication_seconds = 0;  ///< gathered weights and partial sums
};

/// Rules an axis may take, by the index of the choice.
struct RuleNode {
  std::string axis;  ///< empty: the attention kind
  std::vector<std::vector<std::string>> options;
};

struct AlpaProblem {
  std::vector<candidates::MeshAxis> mesh;
  ChoiceProblem problem;                         ///< operators in order, then the rule nodes
  std::vector<std::vector<AlpaChoice>> choices;  ///< of each operator
  std::vector<RuleNode> rules;                   ///< empty without `rules`
};

/// The logical meshes to solve for, those of fewest axes larger than 1 first: of the legal candidates, fsdp and tensor
/// exchanged where the batch tells them not apart and fsdp is the larger; or x by y of all pairs of factors without
/// `rules`. Throws Infeasible where there is none.
std::vector<std::vector<candidates::MeshAxis>> logical_meshes(const workload::Workload& workload,
                                                              const topology::Slice& slice, const AlpaOptions& options);

/// Throws InvalidRequest where the mesh has more than four axes larger than 1, or an operator no choice on it.
AlpaProblem make_problem(const OperatorGraph& graph, const workload::Workload& workload,
                         const topology::Hardware& hardware, const std::vector<candidates::MeshAxis>& mesh,
                         const AlpaOptions& options);

/// What the solution is: seconds of one denoising step by the ILP's own account, and the candidate that runs it.
struct AlpaPlan {
  candidates::Candidate candidate;  ///< with rules only
  double total_seconds = 0;
  double compute_seconds = 0;
  double communication_seconds = 0;                            ///< inside operators
  double reshard_seconds = 0;                                  ///< on edges
  double memory_bytes = 0;                                     ///< the fullest moment, by this account
  std::vector<std::pair<std::string, std::string>> operators;  ///< name, choice
};

/// Throws InvalidRequest for choices that are none or contradict the rules.
AlpaPlan read_plan(const AlpaProblem& problem, const workload::Workload& workload, const std::vector<int>& choices);

AlpaOptions read_alpa_options(const std::string& json);
std::string to_json(const AlpaPlan& plan);

}  // namespace aoizora::baseline
