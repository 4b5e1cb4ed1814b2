"""Says under which mesh it was called, instead of generating a video."""

import jax


def run(config):
    mesh = jax.sharding.get_mesh()
    print(f"{config.request}\nruns on the mesh {dict(mesh.shape)}, rank 0 on {mesh.devices.flat[0]}")
