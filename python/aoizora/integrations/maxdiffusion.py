"""MaxDiffusion's configuration keys for a plan (its base_wan_14b.yml, key=value on the command line)."""

from __future__ import annotations

from aoizora.plan_file import Plan

# MaxDiffusion's name of each attention kind.
_ATTENTION = {"gathered": "flash", "ulysses": "ulysses"}


def mesh_line(plan: Plan) -> str:
    """The key=value line that sets the mesh and what goes with it. The device order has none: see Plan.mesh()."""
    shape = plan.mesh_shape
    parts = [f"ici_{axis}_parallelism={size}" for axis, size in shape.items()]
    parts += [f"dcn_{axis}_parallelism=1" for axis in shape]
    parts.append(f"attention={_ATTENTION[plan.data['attention']]}")
    parts.append("attention_sharding_uniform=False")
    parts.append("allow_split_physical_axes=True")
    return " ".join(parts)
