"""Evaluation of the planner: sweeps, baselines, fidelity, the paper's tables. Needs the extra `evaluate`."""
