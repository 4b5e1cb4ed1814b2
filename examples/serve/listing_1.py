import aoizora  # noqa: I001
from maxdiffusion.generate_wan import run


# Keep model-specific generation unchanged.
@aoizora.auto_shard()
def generate_video(config):
    # Attach selected sharding and placement.
    aoizora.apply_strategy_to_config(config)
    return run(config)


# Shape and TPU allocation identify the reusable plan.
config = aoizora.build_config(
    model_name="wan2.1",
    shape=(480, 832, 21),
    chips=16,
    cfg=True,
)
generate_video(config)
