"""Make the gradients shipped in ``nicemu/data/gradients``: one data-parallel step on real data.

A small convolutional network is trained for a few epochs on scikit-learn's bundled handwritten
digits, then eight workers each compute the gradient of their own shard of one more batch. Each
worker's gradient is written as safetensors, once in bfloat16 and once in float16.

All arithmetic up to the final rounding is float64: BLAS libraries sum in different orders, and
float64 keeps that difference (about 1e-13 relative) far below the last bit of a 16-bit result,
so that ``--check`` can expect equal bits on any host.

    python benches/make_gradients.py            # rewrite the shipped files
    python benches/make_gradients.py --check    # compare them with a fresh computation
"""

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

F64 = NDArray[np.float64]
U16 = NDArray[np.uint16]
Params = dict[str, F64]

WORKERS: Final = 8
EPOCHS: Final = 3
TRAIN_BATCH: Final = 32
SHARD: Final = 32
HELD_OUT: Final = 360
LEARNING_RATE: Final = 0.05
MOMENTUM: Final = 0.9
# A power of two scales exactly; 1024 lifts the gradients out of float16's subnormal range and
# leaves room for the sum over the workers.
F16_LOSS_SCALE: Final = 1024.0
DEFAULT_SEED: Final = 0
DEFAULT_OUT: Final = Path(__file__).resolve().parents[1] / "nicemu" / "data" / "gradients"

# Layer shapes, in the order of the forward pass; weights as (out, in, ...) like PyTorch's.
SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "conv1.weight": (16, 1, 3, 3),
    "conv1.bias": (16,),
    "conv2.weight": (32, 16, 3, 3),
    "conv2.bias": (32,),
    "fc1.weight": (16, 512),
    "fc1.bias": (16,),
    "fc2.weight": (10, 16),
    "fc2.bias": (10,),
}


class Digits(NamedTuple):
    """Images (n, 1, 8, 8) float64 in [0, 1] and labels (n,) int64."""

    images: F64
    labels: NDArray[np.int64]


class Step(NamedTuple):
    """The recorded step: its number, and per worker the float64 gradient and the mean loss."""

    number: int
    accuracy: float
    gradients: list[Params]
    losses: list[float]


class Encoding(NamedTuple):
    """A 16-bit format: its safetensors name, its loss scale, and rounding from float64 to bits."""

    code: str
    loss_scale: float
    round: Callable[[F64], U16]


def load_digits() -> Digits:
    """Return the 1797 digits of the UCI "optical recognition" test set that scikit-learn holds."""
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError:
        sys.exit("make_gradients: needs scikit-learn: run 'pip install scikit-learn'")
    bunch = datasets.load_digits()
    images = np.asarray(bunch.images, np.float64)[:, None] / 16.0
    return Digits(images, np.asarray(bunch.target, np.int64))


def initial_parameters(rng: np.random.RandomState) -> Params:
    """Draw every tensor of SHAPES from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default."""
    params: Params = {}
    bound = 0.0
    for name, shape in SHAPES.items():
        if name.endswith(".weight"):  # the bias that follows takes its layer's bound
            bound = float(np.prod(shape[1:])) ** -0.5
        params[name] = rng.uniform(-bound, bound, shape)
    return params


def patches(x: F64) -> F64:
    """View x (n, c, h, w), zero-padded by one, as its 3x3 windows (n, c, h, w, 3, 3)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return sliding_window_view(padded, (3, 3), axis=(2, 3))


def conv3x3(x: F64, weight: F64) -> F64:
    """Convolve x (n, c, h, w) with weight (o, c, 3, 3), same size: (n, o, h, w)."""
    out = np.tensordot(patches(x), weight, axes=((1, 4, 5), (1, 2, 3)))
    return out.transpose(0, 3, 1, 2)


def conv3x3_weight_gradient(x: F64, d_out: F64) -> F64:
    """Return d weight (o, c, 3, 3) from the input (n, c, h, w) and d output (n, o, h, w)."""
    return np.tensordot(d_out, patches(x), axes=((0, 2, 3), (0, 2, 3)))


def conv3x3_input_gradient(d_out: F64, weight: F64) -> F64:
    """Return d input (n, c, h, w): d output convolved with the flipped, transposed weight."""
    return conv3x3(d_out, weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1])


def loss_and_gradient(params: Params, batch: Digits) -> tuple[float, Params, F64]:
    """Return the mean cross-entropy of the batch, its gradient, and the scores (n, 10).

    conv1 - ReLU - conv2 - ReLU - 2x2 average pooling - fc1 - tanh - fc2 - softmax. Average pooling
    has no ties to break, which max pooling would have on the blank margins of the images; tanh
    in fc1 because half of sixteen ReLUs die, and a dead unit's gradient is all zeros.
    """
    p = params
    n = len(batch.labels)
    rows = np.arange(n)

    a1 = np.maximum(conv3x3(batch.images, p["conv1.weight"]) + p["conv1.bias"][:, None, None], 0)
    a2 = np.maximum(conv3x3(a1, p["conv2.weight"]) + p["conv2.bias"][:, None, None], 0)
    flat = a2.reshape(n, 32, 4, 2, 4, 2).mean(axis=(3, 5)).reshape(n, 512)
    a3 = np.tanh(flat @ p["fc1.weight"].T + p["fc1.bias"])
    scores = a3 @ p["fc2.weight"].T + p["fc2.bias"]

    shifted = scores - scores.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -float(log_softmax[rows, batch.labels].mean())

    d_scores = np.exp(log_softmax)
    d_scores[rows, batch.labels] -= 1.0
    d_scores /= n
    d3 = (d_scores @ p["fc2.weight"]) * (1.0 - a3 * a3)
    d_pooled = (d3 @ p["fc1.weight"]).reshape(n, 32, 4, 4) / 4.0
    d2 = d_pooled.repeat(2, axis=2).repeat(2, axis=3) * (a2 > 0)
    d1 = conv3x3_input_gradient(d2, p["conv2.weight"]) * (a1 > 0)
    gradient = {
        "conv1.weight": conv3x3_weight_gradient(batch.images, d1),
        "conv1.bias": d1.sum(axis=(0, 2, 3)),
        "conv2.weight": conv3x3_weight_gradient(a1, d2),
        "conv2.bias": d2.sum(axis=(0, 2, 3)),
        "fc1.weight": d3.T @ flat,
        "fc1.bias": d3.sum(axis=0),
        "fc2.weight": d_scores.T @ a3,
        "fc2.bias": d_scores.sum(axis=0),
    }
    return loss, gradient, scores


def take(digits: Digits, index: NDArray[np.int64]) -> Digits:
    """Return the digits at the given positions (k,)."""
    return Digits(digits.images[index], digits.labels[index])


def train_and_step(digits: Digits, seed: int) -> Step:
    """Train EPOCHS epochs with momentum SGD, then compute one step's gradient on every worker."""
    # RandomState's stream is frozen by NumPy's policy (NEP 19); Generator's may change.
    rng = np.random.RandomState(seed)
    order = rng.permutation(len(digits.labels))
    held_out, train = take(digits, order[:HELD_OUT]), take(digits, order[HELD_OUT:])
    params = initial_parameters(rng)
    velocity = {name: np.zeros_like(value) for name, value in params.items()}
    steps = 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(train.labels))
        for start in range(0, len(order), TRAIN_BATCH):
            batch = take(train, order[start : start + TRAIN_BATCH])
            _, gradient, _ = loss_and_gradient(params, batch)
            for name, value in gradient.items():
                velocity[name] = MOMENTUM * velocity[name] + value
                params[name] = params[name] - LEARNING_RATE * velocity[name]
            steps += 1

    scores = loss_and_gradient(params, held_out)[2]
    accuracy = float((scores.argmax(axis=1) == held_out.labels).mean())
    order = rng.permutation(len(train.labels))
    gradients, losses = [], []
    for worker in range(WORKERS):
        shard = take(train, order[worker * SHARD : (worker + 1) * SHARD])
        loss, gradient, _ = loss_and_gradient(params, shard)
        gradients.append(gradient)
        losses.append(loss)
    return Step(steps + 1, accuracy, gradients, losses)


def bfloat16_bits(x: F64) -> U16:
    """Round float64 (any shape) once to bfloat16, nearest-even, as bits (same shape) uint16.

    Goes through float32 rounded to odd, which cannot disturb the second rounding.
    """
    single = x.astype(np.float32)
    back = single.astype(np.float64)
    odd = single.view(np.uint32).copy()
    odd -= np.abs(back) > np.abs(x)  # truncate toward zero
    odd |= back != x
    odd += 0x7FFF + ((odd >> 16) & 1)
    return np.asarray(odd >> 16, np.uint16)


def float16_bits(x: F64) -> U16:
    """Round float64 (any shape) once to float16, nearest-even, as bits (same shape) uint16."""
    return x.astype(np.float16).view(np.uint16)


ENCODINGS: Final = {
    "bf16": Encoding("BF16", 1.0, bfloat16_bits),
    "f16": Encoding("F16", F16_LOSS_SCALE, float16_bits),
}


def safetensors_bytes(tensors: dict[str, U16], code: str, metadata: dict[str, str]) -> bytes:
    """Serialise 16-bit tensors as a safetensors file, in the order given.

    Written by hand because the library writes the metadata in no fixed order.
    """
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, bits in tensors.items():
        end = offset + bits.nbytes
        header[name] = {"dtype": code, "shape": list(bits.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format asks for data aligned to 8 bytes
    data = b"".join(bits.astype("<u2").tobytes() for bits in tensors.values())
    return len(text).to_bytes(8, "little") + text + data


def split_safetensors(blob: bytes) -> tuple[bytes, U16]:
    """Return a safetensors file's header text and its data as uint16 (elements,)."""
    start = 8 + int.from_bytes(blob[:8], "little")
    return blob[8:start], np.frombuffer(blob[start:], "<u2")


def make_files(step: Step, seed: int) -> dict[str, bytes]:
    """Return the content of every file, by its path relative to the output directory."""
    files = {}
    for folder, encoding in ENCODINGS.items():
        for worker, (gradient, loss) in enumerate(zip(step.gradients, step.losses, strict=True)):
            metadata = {
                "dataset": "UCI optical recognition of handwritten digits (scikit-learn)",
                "network": "conv3x3(16)-relu-conv3x3(32)-relu-avgpool2-fc16-tanh-fc10",
                "script": "benches/make_gradients.py",
                "seed": str(seed),
                "step": str(step.number),
                "worker": str(worker),
                "workers": str(WORKERS),
                "examples": str(SHARD),
                "loss": f"{loss:.6f}",
                "loss_scale": f"{encoding.loss_scale:g}",
                "rounding": "float64, rounded once to nearest, ties to even",
            }
            bits = {k: encoding.round(gradient[k] * encoding.loss_scale) for k in SHAPES}
            name = f"{folder}/worker{worker}.safetensors"
            files[name] = safetensors_bytes(bits, encoding.code, metadata)
    return files


def summary(files: dict[str, bytes]) -> str:
    """Return the README's table: the distribution of the stored values, per format."""
    lines = [
        "| format | elements | min non-zero | median non-zero | max | subnormals | zeros |",
        "|---|---|---|---|---|---|---|",
    ]
    for folder in ENCODINGS:
        blobs = [blob for name, blob in files.items() if name.startswith(folder + "/")]
        magnitude_bits = np.concatenate([split_safetensors(b)[1] for b in blobs]) & 0x7FFF
        if folder == "bf16":
            smallest_normal = 0x0080
            magnitude = (magnitude_bits.astype(np.uint32) << 16).view(np.float32)
        else:
            smallest_normal = 0x0400
            magnitude = magnitude_bits.view(np.float16).astype(np.float32)
        nonzero = magnitude[magnitude > 0]
        subnormals = int(((magnitude_bits > 0) & (magnitude_bits < smallest_normal)).sum())
        lines.append(
            f"| {folder} | {magnitude.size} | {nonzero.min():.3g} | {np.median(nonzero):.3g} "
            f"| {nonzero.max():.4g} | {subnormals} | {magnitude.size - nonzero.size} |"
        )
    return "\n".join(lines)


def difference(expected: bytes, path: Path) -> str | None:
    """Say how the file at ``path`` differs from the content expected of it; None when equal."""
    if not path.is_file():
        return "missing"
    shipped = path.read_bytes()
    if shipped == expected:
        return None
    header, values = split_safetensors(expected)
    if len(shipped) != len(expected):
        return f"{len(shipped)} bytes instead of {len(expected)}"
    if shipped[: 8 + len(header)] != expected[: 8 + len(header)]:
        return "the header differs"
    shipped_values = split_safetensors(shipped)[1]
    differ = np.flatnonzero(values != shipped_values)
    at = int(differ[0])
    return (
        f"{differ.size} of {values.size} elements differ, first element {at}: "
        f"shipped 0x{int(shipped_values[at]):04x}, computed 0x{int(values[at]):04x}"
    )


def main() -> int:
    """Write the files, or with ``--check`` compare them: 0 when equal, 1 otherwise."""
    parser = argparse.ArgumentParser(description="make the gradients shipped with nicemu")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="the data's directory")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the training run")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()

    step = train_and_step(load_digits(), args.seed)
    files = make_files(step, args.seed)
    if args.check:
        found = {name: difference(blob, args.out / name) for name, blob in files.items()}
        different = [f"{name}: {text}" for name, text in found.items() if text is not None]
        if different:
            print(f"make_gradients: {different[0]}", file=sys.stderr)
            print(f"{len(different)} of {len(files)} files differ", file=sys.stderr)
            return 1
        print(f"{len(files)} files equal, bit for bit")
        return 0

    for name, blob in files.items():
        path = args.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob)
    print(
        f"step {step.number}: held-out accuracy before it {step.accuracy:.3f}, "
        f"worker losses {min(step.losses):.3f} to {max(step.losses):.3f}"
    )
    print(f"{len(files)} files, {sum(map(len, files.values()))} bytes in {args.out}")
    print(summary(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
