"""A video latent by our own Wan under a plan, from a checkpoint of the public form, equals the unsharded one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import plans
import pytest

from aoizora import InvalidRequest, Plan
from aoizora.models.sharding import Sharding
from aoizora.plan_file import ATTENTION_KINDS

pytest.importorskip("safetensors", reason="safetensors is not installed")

from safetensors.numpy import load_file, save_file

from aoizora.generate import Sampling, checkpoint, denoise, euler_sigmas, load_checkpoint, save_random_checkpoint

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("checkpoint")
    save_random_checkpoint(place, plans.TINY, seed=4)
    return place


def test_without_safetensors_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for use in (lambda: save_random_checkpoint(tmp_path, plans.TINY), lambda: checkpoint._open(tmp_path, ExitStack())):
        with pytest.raises(InvalidRequest, match=r"pip install 'aoizora\[serve\]'"):
            use()


def test_sharded_by_a_plan_it_equals_one_device(folder: Path, recorded_plan: Plan, tmp_path: Path) -> None:
    """On 8 and 16 devices, every attention kind, each with the candidate that divides most; the weights never whole on
    a device."""
    paths, counts = [], []
    for slice_name, count in (("v5e:2x4", 8), ("v5e:4x4", 16)):
        for kind in ATTENTION_KINDS:
            paths.append(tmp_path / f"{kind}{count}.json")
            counts.append(count)
            plans.plan_of(recorded_plan, plans.varied(slice_name, kind), slice_name).save(paths[-1])
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    flags += " --xla_force_host_platform_device_count=16"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(HERE / "generation_checks.py"), str(folder), *map(str, paths)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    for result, count in zip(results, counts, strict=True):
        assert result["weights_equal"]
        assert result["devices"] == count
        assert result["held"] < 0.6 * result["whole"]
        assert result["difference"] < 1e-4
        assert result["moved"] > 0.1


def test_the_euler_steps_solve_a_straight_flow_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the velocity is noise - video everywhere, flow matching ends at the video whatever the steps are; and
    guidance weighs the two velocities as it says."""
    import jax.numpy as jnp

    noise, video = np.random.default_rng(2).standard_normal((2, 1, 16, 1, 2, 2)).astype(np.float32)

    def velocity(_: object, latents: object, timestep: object, text: object, **__: object) -> object:
        wanted = (noise - video) / 3.0
        return jnp.concatenate([wanted, wanted * (6.0 / 4.0 - 0.5)]) if np.shape(latents)[0] == 2 else wanted * 3

    monkeypatch.setattr("aoizora.models.wan.forward", velocity)
    text = np.zeros((1, 1, 4), np.float32)
    for steps, shift in ((1, 1.0), (4, 3.0), (7, 5.0)):
        got = denoise({}, noise, text, config=plans.TINY, sharding=Sharding.unsharded(),
                      sampling=Sampling(steps, shift, 1.0))  # fmt: skip
        assert np.abs(np.asarray(got) - video).max() < 1e-5
        guided = denoise({}, noise, text, text, config=plans.TINY, sharding=Sharding.unsharded(),
                         sampling=Sampling(steps, shift, 5.0))  # fmt: skip
        # v = v_negative + 5 (v_text - v_negative), both a third of the way
        assert np.abs(np.asarray(guided) - (noise + (video - noise) / 3)).max() < 1e-5


def test_sigmas_fall_from_noise_to_nothing() -> None:
    assert np.allclose(euler_sigmas(4, 1.0), [1, 0.75, 0.5, 0.25, 0])
    # 3 s / (1 + 2 s) at 3/4, 1/2 and 1/4
    assert np.allclose(euler_sigmas(4, 3.0), [1, 0.9, 0.75, 0.5, 0])
    for steps, shift in ((0, 3.0), (5, 0.0), (5, -1.0), (5, float("nan"))):
        with pytest.raises(InvalidRequest):
            euler_sigmas(steps, shift)


def test_texts_and_batches_that_do_not_fit_are_refused() -> None:
    noise, text = np.zeros((2, 16, 1, 2, 2), np.float32), np.zeros((2, 1, 4), np.float32)
    options = {"config": plans.TINY, "sharding": Sharding.unsharded()}
    with pytest.raises(InvalidRequest, match="needs a negative text"):
        denoise({}, noise, text, **options)
    with pytest.raises(InvalidRequest, match="2 videos of noise, 1 texts"):
        denoise({}, noise, text[:1], text, **options)
    with pytest.raises(InvalidRequest, match="one negative, for each"):
        denoise({}, noise, text, text[:1], **options)


def changed(folder: Path, tmp_path: Path, change: object) -> Path:
    """A copy of the checkpoint in one file, after `change` of its tensors."""
    tensors: dict[str, np.ndarray] = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    change(tensors)  # type: ignore[operator]
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, tmp_path / checkpoint.WEIGHTS)
    return tmp_path


def test_wrong_missing_and_unknown_tensors_are_all_named(folder: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        del tensors["blocks.1.attn2.to_k.bias"], tensors["proj_out.bias"]
        tensors["blocks.0.ffn.net.2.weight"] = np.zeros((64, 192), np.float32)
        tensors["extra.weight"] = np.zeros(3, np.float32)

    with pytest.raises(InvalidRequest) as caught:
        load_checkpoint(changed(folder, tmp_path, change), Sharding.unsharded(), dtype="f32")
    said = str(caught.value)
    assert "2 tensors missing: blocks.1.attn2.to_k.bias, proj_out.bias" in said
    assert "blocks.0.ffn.net.2.weight is (64, 192), its config wants (192, 64)" in said
    assert "1 tensors unknown: extra.weight" in said


def test_one_file_in_a_subfolder_loads_with_progress_and_in_the_type_asked_for(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    changed(folder, tmp_path / "transformer", lambda tensors: None)
    seen: list[tuple[int, int]] = []

    def progress(stage: str, done: int, total: int, *_: object) -> bool:
        assert stage == "load"
        seen.append((done, total))
        return True

    config, params = load_checkpoint(tmp_path, Sharding.unsharded(), progress=progress)
    assert config == plans.TINY
    assert seen == [(number, len(params)) for number in range(1, len(params) + 1)]
    assert str(params["blocks.attn1.to_q.weight"].dtype) == "bfloat16"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda place: (place / "config.json").unlink(), "config.json"),
        (lambda place: (place / "config.json").write_text("[1]"), "no JSON object"),
        (lambda place: (place / "config.json").write_text('{"image_dim": 1280}'), "image_dim is set"),
        (lambda place: (place / "config.json").write_text('{"layers": 2}'), r"unknown \['layers'\]"),
        (lambda place: (place / checkpoint.INDEX).write_text("{"), "no index"),
        (lambda place: (place / checkpoint.INDEX).write_text('{"weight_map": {"a": "../a"}}'), "not beside it"),
        (lambda place: (place / checkpoint.INDEX).unlink(), "and so is"),
        (lambda place: next(place.glob("*.safetensors")).unlink(), "is missing"),
        (lambda place: next(place.glob("*.safetensors")).write_bytes(b"\x08" + b"\0" * 7 + b"{}"), "no whole"),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_refused(folder: Path, tmp_path: Path, spoil: object, said: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    spoil(tmp_path)  # type: ignore[operator]
    with pytest.raises(InvalidRequest, match=said):
        load_checkpoint(tmp_path, Sharding.unsharded())
