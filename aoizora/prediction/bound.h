#pragma once
#include "aoizora/candidates/candidate.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

namespace aoizora::prediction {

/// What Q1 cannot be below, part by part, known before Shardy.
struct Q1Bound {
  double seconds = 0;                     ///< max(C_comp + C_ar, C_comm) of the parts below
  double compute_seconds = 0;             ///< C_comp
  double communication_seconds = 0;       ///< C_comm
  double carried_all_reduce_seconds = 0;  ///< C_ar
};

/// A lower bound of Q1 from the tables alone: the contractions and attentions that the workload declares for its block,
/// times its layers; entry, exit, norms and relayouts are left out. A contraction costs what rows 3 and 4 of Table 1
/// charge for the layouts that the axis rules give weight and activations; where propagation may also leave the result
/// divided by the weight's own axes, the less of both, part by part. Keys move as the attention kind says. It is a
/// bound as far as the table is right and propagation keeps to the rules: the planner's bounds_test proves it over
/// recorded programs, and the planner asks for every candidate once one is found below its bound. A workload that
/// declares nothing has bound 0.
Q1Bound lower_bound(const workload::Workload& workload, const candidates::Candidate& candidate,
                    const topology::Hardware& hardware);

}  // namespace aoizora::prediction
