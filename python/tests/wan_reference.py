"""Wan's transformer again, in numpy and float64, straight from the architecture's definition: complex rotary embedding,
no sharding, no scan, the checkpoint's own layouts. What the JAX model is compared with where nothing was recorded."""

import numpy as np

CONFIG = {
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "ffn_dim": 96,
    "num_layers": 2,
    "text_dim": 32,
    "freq_dim": 32,
    "patch_size": (1, 2, 2),
    "in_channels": 16,
    "out_channels": 16,
    "eps": 1e-6,
}


def random_file(config, latent, text_length, batch, seed):
    """The arrays of a `load_npz` file with random weights, without output."""
    random = np.random.default_rng(seed)
    c = CONFIG | config
    embed = c["num_attention_heads"] * c["attention_head_dim"]
    patch = int(np.prod(c["patch_size"]))
    arrays = {}

    def normal(name, *shape, scale=1.0, offset=0.0):
        arrays[name] = (offset + scale * random.standard_normal(shape)).astype(np.float32)

    def linear(name, n_in, n_out):
        normal(f"param:{name}.weight", n_out, n_in, scale=n_in**-0.5)
        normal(f"param:{name}.bias", n_out, scale=0.1)

    normal(
        "param:patch_embedding.weight",
        embed,
        c["in_channels"],
        *c["patch_size"],
        scale=(c["in_channels"] * patch) ** -0.5,
    )
    normal("param:patch_embedding.bias", embed, scale=0.1)
    time, text = "condition_embedder.time_embedder", "condition_embedder.text_embedder"
    linear(f"{time}.linear_1", c["freq_dim"], embed)
    linear(f"{time}.linear_2", embed, embed)
    linear("condition_embedder.time_proj", embed, 6 * embed)
    linear(f"{text}.linear_1", c["text_dim"], embed)
    linear(f"{text}.linear_2", embed, embed)
    for n in range(c["num_layers"]):
        for site in ("attn1", "attn2"):
            for projection in ("to_q", "to_k", "to_v", "to_out.0"):
                linear(f"blocks.{n}.{site}.{projection}", embed, embed)
            for norm in ("norm_q", "norm_k"):
                normal(f"param:blocks.{n}.{site}.{norm}.weight", embed, scale=0.2, offset=1.0)
        normal(f"param:blocks.{n}.norm2.weight", embed, scale=0.2, offset=1.0)
        normal(f"param:blocks.{n}.norm2.bias", embed, scale=0.1)
        linear(f"blocks.{n}.ffn.net.0.proj", embed, c["ffn_dim"])
        linear(f"blocks.{n}.ffn.net.2", c["ffn_dim"], embed)
        normal(f"param:blocks.{n}.scale_shift_table", 1, 6, embed, scale=0.3)
    normal("param:scale_shift_table", 1, 2, embed, scale=0.3)
    linear("proj_out", embed, c["out_channels"] * patch)
    normal("latents", batch, c["in_channels"], *latent)
    normal("text", batch, text_length, c["text_dim"])
    arrays["timestep"] = random.integers(0, 1000, batch)
    lines = {
        **c,
        "patch_size": ",".join(map(str, c["patch_size"])),
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
    }
    arrays["config"] = np.array([f"{key}={value}" for key, value in lines.items()])
    return arrays


def run(arrays, config):
    """The transformer's output on the arrays of such a file."""
    c = CONFIG | config
    p = {
        name.removeprefix("param:"): value.astype(np.float64)
        for name, value in arrays.items()
        if name.startswith("param:")
    }
    heads, head_dim, eps = c["num_attention_heads"], c["attention_head_dim"], c["eps"]
    embed = heads * head_dim
    x = arrays["latents"].astype(np.float64)
    batch = x.shape[0]
    pt, ph, pw = c["patch_size"]
    f, h, w = x.shape[2] // pt, x.shape[3] // ph, x.shape[4] // pw

    def linear(name, x):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def silu(x):
        return x / (1 + np.exp(-x))

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def layer_norm(x):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)

    def rms_norm(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    tokens = np.zeros((batch, f * h * w, embed))
    kernel = p["patch_embedding.weight"].reshape(embed, -1)
    for n in range(f * h * w):
        i, j, k = n // (h * w), n // w % h, n % w
        piece = x[:, :, i * pt : (i + 1) * pt, j * ph : (j + 1) * ph, k * pw : (k + 1) * pw]
        tokens[:, n] = piece.reshape(batch, -1) @ kernel.T + p["patch_embedding.bias"]
    x = tokens

    half = c["freq_dim"] // 2
    angle = arrays["timestep"][:, None] * np.exp(-np.log(10000) * np.arange(half) / half)
    wave = np.concatenate([np.cos(angle), np.sin(angle)], -1)
    embedder = "condition_embedder.time_embedder"
    time = linear(f"{embedder}.linear_2", silu(linear(f"{embedder}.linear_1", wave)))
    modulation = linear("condition_embedder.time_proj", silu(time)).reshape(batch, 6, embed)
    embedder = "condition_embedder.text_embedder"
    text = linear(f"{embedder}.linear_2", gelu(linear(f"{embedder}.linear_1", arrays["text"].astype(np.float64))))

    side = 2 * (head_dim // 6)
    dims = (head_dim - 2 * side, side, side)
    frequencies = [10000.0 ** (-np.arange(0, dim, 2) / dim) for dim in dims]
    index = np.arange(f * h * w)
    positions = (index // (h * w), index // w % h, index % w)
    rotary = np.exp(1j * np.concatenate([np.outer(at, fr) for at, fr in zip(positions, frequencies, strict=True)], -1))

    def attend(site, x, source, rotated):
        q = rms_norm(linear(f"{site}.to_q", x), p[f"{site}.norm_q.weight"])
        k = rms_norm(linear(f"{site}.to_k", source), p[f"{site}.norm_k.weight"])
        v = linear(f"{site}.to_v", source)
        q, k, v = (y.reshape(batch, -1, heads, head_dim) for y in (q, k, v))
        if rotated:
            pairs = [(y[..., 0::2] + 1j * y[..., 1::2]) * rotary[None, :, None] for y in (q, k)]
            q, k = (np.stack([y.real, y.imag], -1).reshape(q.shape) for y in pairs)
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(head_dim)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return linear(f"{site}.to_out.0", np.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, -1, embed))

    for n in range(c["num_layers"]):
        block = f"blocks.{n}"
        shift1, scale1, gate1, shift2, scale2, gate2 = np.split(p[f"{block}.scale_shift_table"] + modulation, 6, axis=1)
        normed = layer_norm(x) * (1 + scale1) + shift1
        x = x + attend(f"{block}.attn1", normed, normed, True) * gate1
        normed = layer_norm(x) * p[f"{block}.norm2.weight"] + p[f"{block}.norm2.bias"]
        x = x + attend(f"{block}.attn2", normed, text, False)
        normed = layer_norm(x) * (1 + scale2) + shift2
        x = x + linear(f"{block}.ffn.net.2", gelu(linear(f"{block}.ffn.net.0.proj", normed))) * gate2

    shift, scale = np.split(p["scale_shift_table"] + time[:, None], 2, axis=1)
    x = linear("proj_out", layer_norm(x) * (1 + scale) + shift)
    output = np.zeros((batch, c["out_channels"], f * pt, h * ph, w * pw))
    for n in range(f * h * w):
        i, j, k = n // (h * w), n // w % h, n % w
        piece = x[:, n].reshape(batch, pt, ph, pw, c["out_channels"]).transpose(0, 4, 1, 2, 3)
        output[:, :, i * pt : (i + 1) * pt, j * ph : (j + 1) * ph, k * pw : (k + 1) * pw] = piece
    return output
